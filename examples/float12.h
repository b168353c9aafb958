/* A block codec of the program (fsccl/codec.h): floats of 12 bits. */
#ifndef FLOAT12_H
#define FLOAT12_H

#include <fsccl/codec.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const fsccl_block_codec_t kFloat12;

#ifdef __cplusplus
}
#endif
#endif
