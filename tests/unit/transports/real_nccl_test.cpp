// Tests the real NCCL if one is installed: functions that need no GPU, and the error of those that
// do. The argument is NCCL's path.
#include <cstdio>
#include <cstdlib>

#include "cuda/driver.h"
#include "transports/nccl/nccl_features.h"
#include "transports/nccl/nccl_library.h"

using namespace fsccl;

#define REQUIRE(condition, text)                            \
  do {                                                      \
    if (!(condition)) {                                     \
      std::fprintf(stderr, "%s: %s\n", #condition, (text)); \
      return 1;                                             \
    }                                                       \
  } while (0)

int main(int count, char** arguments) {
  constexpr int kSkipped = 77;
  const Result<nccl::Library> loaded = nccl::load(count > 1 ? arguments[1] : "libnccl.so.2");
  if (!loaded.ok()) {
    std::printf("%s\n", loaded.status().text().c_str());
    return kSkipped;
  }
  const nccl::Library& library = loaded.value();
  std::printf("NCCL %s\n", nccl::version_text(library.version).c_str());
  REQUIRE(library.version >= nccl::kOldest, "an NCCL that is too old");
  REQUIRE((library.ncclCommWindowRegister != nullptr) == (library.version >= 22700),
          "windows came with 2.27");
  REQUIRE((library.ncclAlltoAll != nullptr) == (library.version >= 22800),
          "ncclAlltoAll came with 2.28");
  nccl::ncclUniqueId id{};
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  const nccl::ncclResult_t made = library.ncclGetUniqueId(&id);
  if (made != nccl::ncclSuccess) {  // without a driver some versions refuse even this
    const Status status = nccl::failed(library, "ncclGetUniqueId", made, nullptr);
    std::printf("%s\n", status.text().c_str());
    return 0;
  }
  std::string why;
  if (cuda::driver(&why)) return 0;  // with a GPU, the tests in tests/gpu do the rest
  nccl::ncclComm_t comm = nullptr;
  nccl::ncclConfig_t settings;
  nccl::ncclResult_t code = library.ncclCommInitRankConfig(&comm, 1, id, 0, &settings);
  REQUIRE(code != nccl::ncclSuccess && code != nccl::ncclInProgress, "there is no driver");
  const Status status = nccl::failed(library, "ncclCommInitRankConfig", code, nullptr);
  std::printf("%s\n", status.text().c_str());
  return 0;
}
