#include "unit/device/stream_plan.h"

namespace fsccl {
namespace {

using Kind = StreamAction::Kind;

class Compiler {
 public:
  Compiler(const Plan& plan, size_t slots, const std::vector<cuda::CUdeviceptr>& places)
      : plan_(plan), slots_(slots), places_(places) {
    made_.rank = plan.rank;
    made_.ranks = plan.ranks;
  }

  Result<StreamPlan> run(const StreamOptions& options) {
    for (const Step& step : plan_.steps) FSCCL_TRY(add(step));
    for (StreamAction& action : made_.actions) {
      if (action.kind == Kind::cast && only_copies(action.casts, options.scatter_below))
        action.kind = Kind::place;
      if (action.kind != Kind::copy) continue;
      uint64_t bytes = 0;
      for (const CopyRange& piece : action.copies) bytes += piece.bytes();
      if (bytes / action.copies.size() < options.scatter_below) action.kind = Kind::scatter;
    }
    return std::move(made_);
  }

 private:
  static bool only_copies(const std::vector<cuda::CastRange>& pieces, uint64_t least) {
    uint64_t bytes = 0;
    for (const cuda::CastRange& piece : pieces) {
      if (piece.from != piece.to) return false;
      bytes += piece.count * dtype_size(piece.from);
    }
    return bytes / pieces.size() >= least;
  }

  Status add(const Step& step) {
    switch (step.kind) {
      case StepKind::wait_released:  // the caller that takes the slot waits for that
        return success();
      case StepKind::copy:
        return step.src.rank != plan_.rank ? pull(step) : cast(step);
      case StepKind::cast:
        return cast(step);
      case StepKind::signal:
        append(Kind::signal).tick = step.tick;
        made_.says_done = step.tick > 0;
        return success();
      case StepKind::wait:
        return wait(step);
      case StepKind::reduce:
        return reduce(step);
      default:
        return unknown("a step of another kind");
    }
  }

  Status cast(const Step& step) {
    if (step.dst.buffer >= slots_ || step.src.buffer < slots_)
      return unknown("a cast that is not into a slot");
    at_end(Kind::cast)
        .casts.push_back({place(step.src), step.dst.offset, step.count, step.from,
                          step.kind == StepKind::copy ? step.from : step.to});
    return success();
  }

  Status pull(const Step& step) {
    if (step.dst.buffer >= slots_ || step.src.buffer != step.dst.buffer)
      return unknown("a copy that is not between slots");
    std::vector<CopyRange>& copies = at_end(Kind::copy).copies;
    const CopyRange piece{step.src.rank, step.src.offset, step.dst.offset, step.count, step.from};
    if (!copies.empty()) {
      CopyRange& last = copies.back();
      if (last.peer == piece.peer && last.dtype == piece.dtype &&
          last.from + last.bytes() == piece.from && last.to + last.bytes() == piece.to) {
        last.count += piece.count;
        return success();
      }
    }
    copies.push_back(piece);
    return success();
  }

  Status wait(const Step& step) {
    auto& actions = made_.actions;
    size_t at = actions.size();
    if (at && actions[at - 1].kind == Kind::copy) at--;
    const bool joins = at && actions[at - 1].kind == Kind::wait &&
                       actions[at - 1].tick == step.tick && step.peer != kAllPeers;
    if (joins) {
      if (!actions[at - 1].peers.empty()) actions[at - 1].peers.push_back(step.peer);
      return success();
    }
    StreamAction& made = append(Kind::wait);
    made.tick = step.tick;
    if (step.peer != kAllPeers) made.peers.push_back(step.peer);
    return success();
  }

  Status reduce(const Step& step) {
    if (step.src.buffer >= slots_ || step.dst.buffer < slots_ ||
        step.own.buffer != step.src.buffer || step.own.offset != step.src.offset)
      return unknown("a reduction that is not from slots");
    at_end(Kind::reduce)
        .reduces.push_back({step.src.offset, place(step.dst), step.count, step.from, step.to});
    return success();
  }

  Status unknown(const char* what) const {
    return fail(FSCCL_ERR_INTERNAL, "plan '{}' has {}, which streams do not carry out", plan_.name,
                what);
  }
  cuda::CUdeviceptr place(const Operand& where) const {
    return places_[where.buffer - slots_] + where.offset;
  }
  StreamAction& append(Kind kind) {
    made_.actions.push_back({});
    made_.actions.back().kind = kind;
    return made_.actions.back();
  }
  StreamAction& at_end(Kind kind) {
    return !made_.actions.empty() && made_.actions.back().kind == kind ? made_.actions.back()
                                                                       : append(kind);
  }

  const Plan& plan_;
  const size_t slots_;
  const std::vector<cuda::CUdeviceptr>& places_;
  StreamPlan made_;
};

}  // namespace

StreamOptions& StreamOptions::of_process() {
  static StreamOptions options;
  return options;
}

Result<StreamPlan> compile(const Plan& plan, size_t slots,
                           const std::vector<cuda::CUdeviceptr>& places,
                           const StreamOptions& options) {
  return Compiler(plan, slots, places).run(options);
}

}  // namespace fsccl
