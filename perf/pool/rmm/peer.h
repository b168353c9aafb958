// The interface of the library that build.sh makes of RMM's pool of device memory, and that
// `fsccl-perf pool --rmm` loads. It has one pool at a time.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rmm_peer {
  void (*open)(void);                              // makes a new pool in place of the one before
  void* (*take)(uint64_t bytes, uint32_t stream);  // returns null if the pool refuses
  void (*give_back)(void* block, uint64_t bytes, uint32_t stream);
  uint64_t (*reserved)(void);  // bytes that the pool has from upstream
  uint64_t (*growths)(void);   // requests of the pool to upstream
  uint64_t (*waits)(void);     // waits of one stream for another that the pool asked for
};
const struct rmm_peer* fsccl_perf_rmm_peer(void);

#ifdef __cplusplus
}
#endif
