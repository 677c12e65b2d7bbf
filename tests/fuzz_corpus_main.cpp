// Runs a fuzz target once over each file of its seed corpus: the main function of fuzz programs outside the fuzz
// preset. Usage: NAME_fuzz FOLDER_OR_FILE...

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

/// The files named, and those below the folders named, in an order that does not depend on the file system.
std::vector<fs::path> list_inputs(const std::vector<fs::path>& roots) {
  std::vector<fs::path> inputs;
  for (const fs::path& root : roots) {
    if (fs::is_regular_file(root)) {
      inputs.push_back(root);
      continue;
    }
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
      if (entry.is_regular_file()) inputs.push_back(entry.path());
    }
  }
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

void run_input(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (!stream) throw std::runtime_error("cannot read " + path.string());
  // Named before it runs, so that the log of a crash ends with its cause.
  std::printf("%s (%zu bytes)\n", path.c_str(), bytes.size());
  std::fflush(stdout);
  // A copy of exactly this size: a string has a zero behind its end, which would hide a read too far from the
  // sanitizer.
  const auto input = std::make_unique<uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), input.get());
  LLVMFuzzerTestOneInput(input.get(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<fs::path> inputs = list_inputs({argv + 1, argv + argc});
    if (inputs.empty()) {
      std::fprintf(stderr, "no input: name a folder with seeds, such as tests/corpus/NAME_fuzz\n");
      return 1;
    }
    for (const fs::path& input : inputs)
      run_input(input);
    std::printf("%zu inputs passed\n", inputs.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
