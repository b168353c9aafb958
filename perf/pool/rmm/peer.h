// The interface of the library that build.sh makes of RMM: its pool of device memory, as
// `fsccl-perf pool --rmm` loads it. One pool at a time.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rmm_peer {
  void (*open)(void);                              // a new pool, in place of the one before
  void* (*take)(uint64_t bytes, uint32_t stream);  // null: refused
  void (*give_back)(void* block, uint64_t bytes, uint32_t stream);
  uint64_t (*reserved)(void);  // bytes from upstream
  uint64_t (*growths)(void);   // requests of it to upstream
  uint64_t (*waits)(void);     // waits of one stream for another that it asked for
};
const struct rmm_peer* fsccl_perf_rmm_peer(void);

#ifdef __cplusplus
}
#endif
