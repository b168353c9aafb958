#include "base/build.h"

#include <fmt/format.h>

#include "base/version.h"

namespace fsccl {

std::string library_build() {
  const uint32_t version = library_version();
  return fmt::format("{}.{}.{} ({})", version / 10000, version / 100 % 100, version % 100,
                     FSCCL_BUILD_OPTIONS);
}

}  // namespace fsccl
