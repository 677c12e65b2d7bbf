# One library, one test program and the fuzz programs of a floor (a folder below src/).
# The floors a folder may use are the ones it names in DEPENDS; docs/architecture.md has the table.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(GTest REQUIRED)

add_library(tidepool_options INTERFACE)
target_include_directories(tidepool_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(tidepool_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror)
if(CMAKE_UNITY_BUILD)
  # Types of an unnamed namespace are what g++ warns of in headers, and it takes a file compiled with others for one.
  target_compile_options(tidepool_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
# A kernel's rounding must not depend on what the compiler fuses.
target_compile_options(tidepool_options INTERFACE -ffp-contract=off)
if(TIDEPOOL_SANITIZE)
  target_compile_options(tidepool_options INTERFACE
    -fsanitize=${TIDEPOOL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tidepool_options INTERFACE -fsanitize=${TIDEPOOL_SANITIZE})
  # g++ loses track of initialisations among the checks it inserts, and then warns about its own <regex>.
  target_compile_options(tidepool_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

# Linking the test programs is a good part of a build; lld takes a third of the time of the default linker.
find_program(LLD_PROGRAM ld.lld)
if(LLD_PROGRAM)
  add_link_options(-fuse-ld=lld)
endif()

include(GoogleTest)

# Parsing headers is most of the time that a file takes to compile. clang++ reads what it parsed before at once, so
# there the headers of others are parsed once: by a library for libraries and by a program for test programs, as the two
# cannot share them. g++ reads them hardly faster than it parses them, but for GoogleTest's (40 % of the time of a small
# test).
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  set(TIDEPOOL_COMMON_HEADERS <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cmath> <condition_variable>
    <cstddef> <cstdint> <cstring> <deque> <filesystem> <fstream> <functional> <limits> <map> <memory> <mutex> <numbers>
    <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <tuple> <unordered_map>
    <utility> <variant> <vector> <fmt/format.h> <fmt/ranges.h>)
  # Else ccache would take each build of them for another.
  add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/library_headers.cpp CONTENT "\n")
  add_library(tidepool_library_headers STATIC ${CMAKE_BINARY_DIR}/library_headers.cpp)
  target_precompile_headers(tidepool_library_headers PRIVATE ${TIDEPOOL_COMMON_HEADERS})
endif()

# The options of the library of a floor.
function(tidepool_compile_library target)
  target_link_libraries(${target} PUBLIC tidepool_options fmt::fmt Threads::Threads)
  if(TIDEPOOL_SANITIZE)
    # Tests are compiled without optimisation there, in half the time; what they run is not.
    target_compile_options(${target} PRIVATE -O1)
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND NOT target STREQUAL tidepool_library_headers)
    target_precompile_headers(${target} REUSE_FROM tidepool_library_headers)
  endif()
endfunction()
if(TARGET tidepool_library_headers)
  tidepool_compile_library(tidepool_library_headers)
endif()

# Test programs are not optimised, as what they call is and they need not be.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/test_headers.cpp CONTENT "int main() {}\n")
add_executable(tidepool_test_headers ${CMAKE_BINARY_DIR}/test_headers.cpp)
target_precompile_headers(tidepool_test_headers PRIVATE ${TIDEPOOL_COMMON_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)

function(tidepool_compile_tests target)
  target_link_libraries(${target} PRIVATE tidepool_options fmt::fmt GTest::gmock GTest::gtest_main)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0> $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  if(TIDEPOOL_SANITIZE MATCHES undefined)
    # What is tested is checked for undefined behaviour; the tests' own code is not, in a third less time.
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
  if(NOT target STREQUAL tidepool_test_headers)
    target_precompile_headers(${target} REUSE_FROM tidepool_test_headers)
  endif()
endfunction()
tidepool_compile_tests(tidepool_test_headers)

# Makes every test of a GoogleTest program known to ctest, labelled by its name: slow and golden for tests that have
# Slow or Golden in it, else unit. The program is asked once for its tests, whatever labels there are; ctest gives them.
#
# Under sanitizers the start and the end of a process cost more than most tests, so there a program's tests run in a few
# processes: ctest knows these parts, and those that are slow are left out.
function(tidepool_discover_tests target prefix)
  if(TIDEPOOL_SANITIZE)
    set(parts 8)
    math(EXPR last "${parts} - 1")
    foreach(part RANGE ${last})
      add_test(NAME ${prefix}part_${part} COMMAND ${target} --gtest_filter=-*Slow* --gtest_brief=1)
      set_tests_properties(${prefix}part_${part} PROPERTIES LABELS unit TIMEOUT 1200
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${parts};GTEST_SHARD_INDEX=${part}")
    endforeach()
    return()
  endif()
  gtest_discover_tests(${target} TEST_PREFIX ${prefix} TEST_LIST ${target}_names DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS unit TIMEOUT 600)
  set(labels ${CMAKE_CURRENT_BINARY_DIR}/${target}_labels.cmake)
  file(CONFIGURE OUTPUT ${labels} @ONLY CONTENT [[
foreach(test IN LISTS @target@_names)
  if(test MATCHES "Slow")
    set_tests_properties("${test}" PROPERTIES LABELS slow)
  elseif(test MATCHES "Golden")
    set_tests_properties("${test}" PROPERTIES LABELS golden)
  endif()
endforeach()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels})
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
    target_link_libraries(tidepool_${name} PUBLIC ${below} ${ARG_LINKS})
    tidepool_compile_library(tidepool_${name})
  else()
    add_library(tidepool_${name} INTERFACE)
    target_link_libraries(tidepool_${name} INTERFACE tidepool_options ${below} ${ARG_LINKS} fmt::fmt Threads::Threads)
  endif()

  if(tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE tidepool_${name} ${ARG_TEST_LINKS})
    tidepool_compile_tests(${name}_test)
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
