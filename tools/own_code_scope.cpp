// A plugin of clang-tidy, loaded by tools/tidy.py: checks look at the code of this repository only. clang-tidy walks
// through every declaration of every system header for each check and drops what it finds there, which is most of its
// time: without them a file takes half of it, with the same findings.
#include <clang-tidy/ClangTidyCheck.h>
#include <clang-tidy/ClangTidyModule.h>
#include <clang-tidy/ClangTidyModuleRegistry.h>

#include <vector>

namespace {

/// Finds nothing. It is asked first, for the translation unit as a whole, and leaves the walk only the declarations
/// that are not of a system header.
class OwnCodeScope final : public clang::tidy::ClangTidyCheck {
 public:
  using ClangTidyCheck::ClangTidyCheck;

  void registerMatchers(clang::ast_matchers::MatchFinder* finder) override {
    finder->addMatcher(clang::ast_matchers::translationUnitDecl().bind("unit"), this);
  }

  void check(const clang::ast_matchers::MatchFinder::MatchResult& result) override {
    const auto* unit = result.Nodes.getNodeAs<clang::TranslationUnitDecl>("unit");
    std::vector<clang::Decl*> own;
    // What lies in a precompiled header and was not needed stays there.
    for (clang::Decl* declaration : unit->noload_decls()) {
      const clang::SourceLocation place = result.SourceManager->getExpansionLoc(declaration->getLocation());
      if (place.isValid() && !result.SourceManager->isInSystemHeader(place)) own.push_back(declaration);
    }
    result.Context->setTraversalScope(own);
  }
};

class Module final : public clang::tidy::ClangTidyModule {
 public:
  void addCheckFactories(clang::tidy::ClangTidyCheckFactories& factories) override {
    factories.registerCheck<OwnCodeScope>("own-code-scope");
  }
};

const clang::tidy::ClangTidyModuleRegistry::Add<Module> kModule("own-code", "leaves out system headers");

}  // namespace
