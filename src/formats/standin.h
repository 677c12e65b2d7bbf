#pragma once

#include <filesystem>

#include "formats/config.h"

namespace tidepool {

/// Writes a stand-in for the checkpoint that `config_file` describes: config.json, the index, and one sparse shard per
/// released group (vision; embedding; each layer; norm and head; each draft stage; each Engram table) with the released
/// tensor names, dtypes and shapes. The weights are holes in the files, which read as zeros, so the 510 GB of the
/// release take some 18 MB of disk. For trying out what looks at a checkpoint without computing with it.
/// `folder` is made where needed; files in it are replaced. Throws Error (kIo where the file system has no sparse files
/// or too small ones).
void write_standin(const std::filesystem::path& config_file, const std::filesystem::path& folder);

}  // namespace tidepool
