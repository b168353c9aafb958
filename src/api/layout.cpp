// fsccl_layout_plan.
#include "layout/layout.h"
#include "api/guard.h"
#include "api/structs.h"
#include "fsccl/insight.h"

using namespace fsccl;

namespace {

constexpr int kMostRanks = 1 << 20;
constexpr size_t kMostParams = size_t{1} << 20;

Result<Layout> make_layout(fsccl_layout_t kind, const fsccl_param_t* params, size_t count,
                           int ranks) {
  if (!params || count == 0 || count > kMostParams)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "a layout of 1 .. {} parameters at params, not of {} at {}", kMostParams, count,
                static_cast<const void*>(params));
  if (ranks < 1 || ranks > kMostRanks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "ranks is {}; a layout is planned for 1 .. {}", ranks,
                kMostRanks);
  std::vector<ParamShape> shapes;
  for (size_t i = 0; i < count; ++i) {
    const fsccl_param_t& param = params[i];
    if (param.dims < 0 || param.dims > FSCCL_MAX_DIMS)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "parameter {}: dims is {}, it is 0 .. {}", i,
                  param.dims, FSCCL_MAX_DIMS);
    shapes.push_back({{param.shape, param.shape + param.dims},
                      param.tied_to,
                      param.block_rows,
                      param.block_columns});
  }
  return Layout::make(kind, std::move(shapes), ranks);
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_layout_plan(fsccl_layout_t kind, const fsccl_param_t* params, size_t count,
                                 int ranks, int rank, fsccl_piece_t* pieces,
                                 fsccl_layout_stats_t* stats) {
  return guarded("fsccl_layout_plan", [&]() -> Status {
    if (stats) FSCCL_TRY(check_output(stats, "stats", "FSCCL_LAYOUT_STATS_INIT"));
    FSCCL_ASSIGN(const Layout layout, make_layout(kind, params, count, ranks));
    if (rank != FSCCL_ALL_RANKS && (rank < 0 || rank >= ranks))
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "rank is {}; it is 0 .. {}, or FSCCL_ALL_RANKS", rank,
                  ranks - 1);
    const int first = rank == FSCCL_ALL_RANKS ? 0 : rank,
              end = rank == FSCCL_ALL_RANKS ? ranks : rank + 1;
    for (int q = first; pieces && q < end; ++q)
      for (size_t i = 0; i < count; ++i) {
        const Piece piece = layout.piece(q, i);
        *pieces++ = {piece.begin, piece.count};
      }
    if (stats)
      fill_output(stats, {sizeof *stats, layout.total(), layout.largest_shard(), layout.padding(),
                          layout.padding_bound()});
    return success();
  });
}

}  // extern "C"
