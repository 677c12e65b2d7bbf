#include <string>
#include <vector>

#include "apps/program.h"

int main(int argc, char** argv) {
  return tidepool::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
