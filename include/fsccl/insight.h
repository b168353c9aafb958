/*
 * FSCCL insight: what a training step would take, before it runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FSCCL_INSIGHT_H
#define FSCCL_INSIGHT_H

#include "fsccl/fsccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Forecasts the memory and the time of a sharded training step from the plans that would run: slots
 * by the planner of pools, gathers and reductions by the builders of plans and their cost model,
 * and two streams, of computation and of communication, as events. `configuration` is JSON:
 *
 * - "model": as perf/models, an object. A unit may also have, of a token, "forward_flops",
 *   "forward_flops_per_context", "activation_bytes" and "checkpoint_bytes", which
 *   fsccl_torch.export_model() writes. What a unit does not say is estimated from the shapes of its
 *   parameters, by the rules of src/forecast/estimate.h.
 * - "machine": "name", "device" (gpu, cpu), "ranks_per_host", "memory_bytes" and "context_bytes" of
 *   a rank, "memory_gb_per_s", "tflops" (an object by type, of a rank), "efficiency" (the part of
 *   it that passes reach), "carrier" (plans, nccl), "within" (one way of a rank) and "between" (one
 *   way of a host), each with "link", "gb_per_s" and "ns", and "topology" (a file, or "here").
 * - The step: "ranks", "batch" (sequences of a rank), "sequence" (tokens), "accumulate"
 *   (micro-batches), "shard_over" (ranks that share the shards; 0: all), "layout" (per_param, flat,
 *   ragged), "shard_type", "wire", "reduce", "gradient_type" (fp32, bf16, fp16), "compute" (a key
 *   of "tflops"), "optimizer" (adam, momentum, sgd, none), "optimizer_bytes" (of an element),
 *   "keep_bytes", "prefetch" (units), "by_parameter", "checkpoint" (none, full), "codec_ratio",
 *   "codec_gb_per_s", "memory_limit_bytes", "experts_per_token".
 * - "calibration": a step that was measured on this machine with this model: "configuration" (what
 *   differs), "step_s" or "tokens_per_s_per_rank", "spread" (0.1), "source".
 * - "measured_communication_s": seconds of the communication of a step of just this setup, without
 *   accumulation, as `fsccl-perf step` measures it.
 * - "search", "what_if", "scaling", "startup", "timeline": true for these parts; "handshake_us" of
 *   a rank for the start.
 *
 * The answer has memory by owner, the step's time with an interval, exposed and hidden
 * communication by unit, bytes by class of link, and what is not known; every key's name ends in
 * its unit: _bytes, _s, _ms. A ranked search is made when the setup does not fit, too. Times are of
 * full hosts that are alike. Nothing is made for each rank: 100,000 ranks take as long as 8.
 *
 * Calls take(context, json, bytes) once; `json` ends in a zero, which `bytes` does not count, and
 * lives during the call. Reads a topology file; does not communicate, needs no communicator; blocks
 * while it computes (milliseconds; a search of a large model a second); any thread.
 * FSCCL_ERR_INVALID_ARGUMENT says what is wrong with which key and what to do.
 */
FSCCL_API fsccl_status_t fsccl_forecast(const char* configuration,
                                        void (*take)(void* context, const char* json, size_t bytes),
                                        void* context);

#ifdef __cplusplus
}
#endif

#endif /* FSCCL_INSIGHT_H */
