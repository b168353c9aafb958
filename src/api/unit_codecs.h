// Checks the codecs that a unit's config names.
#pragma once
#include "unit/unit_definition.h"

namespace fsccl {

// Reads gather_codec and reduce_codec into `spec`, whose pool is already set. Errors say which of
// the two is wrong, and what to do.
Status read_codecs(const fsccl_unit_config_t& config, UnitSpec* spec);

}  // namespace fsccl
