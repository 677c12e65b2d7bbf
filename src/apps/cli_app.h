#pragma once

/// The command line library's main class, so that headers need not include the library.
namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}
