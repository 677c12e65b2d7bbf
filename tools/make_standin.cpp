// make_standin CONFIG FOLDER [--tokenizer FILE]: a checkpoint folder with every tensor's name, dtype and shape and no
// weights (see formats/standin.h).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "formats/standin.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Writes a stand-in for a released checkpoint: all names and shapes, no weights (sparse files)."};
  std::string config;
  std::string folder;
  std::string tokenizer;
  app.add_option("config", config, "config.json of the model")->required();
  app.add_option("folder", folder, "where to write; made where needed")->required();
  app.add_option("--tokenizer", tokenizer, "tokenizer.json to copy beside it");
  CLI11_PARSE(app, argc, argv);
  tidepool::write_standin(config, folder);
  if (!tokenizer.empty()) {
    std::filesystem::copy_file(tokenizer, std::filesystem::path(folder) / "tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_standin: %s\n", error.what());
    return 1;
  }
}
