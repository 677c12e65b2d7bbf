# One library, one test program and the fuzz programs of a floor (a folder below src/).
# The floors a folder may use are the ones it names in DEPENDS; docs/architecture.md has the table.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(GTest REQUIRED)

add_library(tidepool_options INTERFACE)
target_include_directories(tidepool_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(tidepool_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror)
# A kernel's rounding must not depend on what the compiler fuses.
target_compile_options(tidepool_options INTERFACE -ffp-contract=off)
if(TIDEPOOL_SANITIZE)
  target_compile_options(tidepool_options INTERFACE
    -fsanitize=${TIDEPOOL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tidepool_options INTERFACE -fsanitize=${TIDEPOOL_SANITIZE})
  # g++ loses track of initialisations among the checks it inserts, and then warns about its own <regex>.
  target_compile_options(tidepool_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

include(GoogleTest)

# Makes every test of a GoogleTest program known to ctest, labelled by its name: golden and slow for tests that have
# Golden or Slow in it, else unit.
function(tidepool_discover_tests target prefix)
  set(unit_filter "-*Golden*:*Slow*")
  set(golden_filter "*Golden*-*Slow*")
  set(slow_filter "*Slow*")
  foreach(label unit golden slow)
    gtest_discover_tests(${target} TEST_PREFIX ${prefix} TEST_FILTER ${${label}_filter} DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS ${label} TIMEOUT 600)
  endforeach()
endfunction()

# tidepool_floor(NAME [DEPENDS floor...] [LINKS target...] [TEST_LINKS target...])
#   x.cpp -> library tidepool_NAME; x_test.cpp -> program NAME_test; x_fuzz.cpp -> program x_fuzz
function(tidepool_floor name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LINKS;TEST_LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cpp$")

  set(below "")
  foreach(floor ${ARG_DEPENDS})
    list(APPEND below tidepool_${floor})
  endforeach()

  if(sources)
    add_library(tidepool_${name} STATIC ${sources})
    target_link_libraries(tidepool_${name} PUBLIC tidepool_options ${below} ${ARG_LINKS} fmt::fmt Threads::Threads)
    if(TIDEPOOL_SANITIZE)
      # Tests are compiled without optimisation there, in half the time; what they run is not.
      target_compile_options(tidepool_${name} PRIVATE -O1)
    endif()
  else()
    add_library(tidepool_${name} INTERFACE)
    target_link_libraries(tidepool_${name} INTERFACE tidepool_options ${below} ${ARG_LINKS} fmt::fmt Threads::Threads)
  endif()

  if(tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE tidepool_${name} ${ARG_TEST_LINKS} GTest::gmock GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE
      TIDEPOOL_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden"
      TIDEPOOL_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    tidepool_discover_tests(${name}_test "${name}.")
  endif()

  foreach(fuzzer ${fuzzers})
    tidepool_fuzzer(${fuzzer} tidepool_${name})
  endforeach()
endfunction()

# The main() of fuzz targets that run their corpus: compiled, and checked by clang-tidy, once for all of them.
if(NOT TIDEPOOL_FUZZ)
  add_library(tidepool_fuzz_corpus STATIC ${PROJECT_SOURCE_DIR}/tests/fuzz_corpus_main.cpp)
  target_link_libraries(tidepool_fuzz_corpus PUBLIC tidepool_options)
endif()

# A fuzz target is a libFuzzer program under TIDEPOOL_FUZZ, and in every other build a plain program that runs
# its seed corpus (tests/corpus/NAME) once, as a test.
function(tidepool_fuzzer source library)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE ${library})
  set(corpus ${PROJECT_SOURCE_DIR}/tests/corpus/${name})
  if(TIDEPOOL_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    target_compile_definitions(${name} PRIVATE TIDEPOOL_FUZZ)
  else()
    target_link_libraries(${name} PRIVATE tidepool_fuzz_corpus)
    add_test(NAME fuzz_corpus.${name} COMMAND ${name} ${corpus})
    set_tests_properties(fuzz_corpus.${name} PROPERTIES LABELS "unit" TIMEOUT 300)
  endif()
endfunction()
