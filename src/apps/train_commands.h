#pragma once

#include "apps/command.h"

namespace tidepool {

/// `tidepool train model`: carries out a recipe.
void add_train_model_command(CLI::App& train, Invocation& invocation);

}  // namespace tidepool
