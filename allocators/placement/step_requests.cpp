#include "allocators/placement/step_requests.h"

#include <algorithm>
#include <map>

namespace fsccl {
namespace {

constexpr StreamClock everything() {
  StreamClock clock{};
  clock.fill(UINT64_MAX);
  return clock;
}
constexpr StreamClock kEverything = everything();

// Gives a number to each request. Requests with one number get one place. A stable key has one
// number in all steps, and so has a key that is held between steps. A slot of another key has one
// number in all steps that are alike up to its take.
class Numbers {
 public:
  Numbers(const JointPlan& plan, const HeldSlots& held) : plan_(plan) {
    for (const auto& [key, slot] : held) kept_.emplace(key, -1);
    for (auto& [key, number] : kept_) number = next_++;
    for (size_t step = 0; step < plan.steps.size(); ++step) add(step);
  }
  int64_t of_take(size_t step, size_t event) const { return taken_[step][event]; }
  int64_t of_kept(uint64_t key) const { return kept_.at(key); }

 private:
  void add(size_t step) {
    size_t like = 0, shared = 0;  // `like`: the earlier step with the longest common beginning
    for (size_t other = 0; other < step; ++other) {
      if (plan_.common(step, other) <= shared) continue;
      shared = plan_.common(step, other);
      like = other;
    }
    std::vector<int64_t> numbers;
    for (const StepEvent& event : plan_.steps[step].events) {
      const size_t at = numbers.size();
      const auto kept = event.takes() ? kept_.find(event.key) : kept_.end();
      int64_t number = -1;
      if (kept != kept_.end())
        number = kept->second;
      else if (event.takes() && event.stable)
        number = stable_.try_emplace(event.key, next_++).first->second;
      else if (event.takes() && plan_.steps.size() > 1)
        number = at < shared ? taken_[like][at] : next_++;
      numbers.push_back(number);
    }
    taken_.push_back(std::move(numbers));
  }

  const JointPlan& plan_;
  int64_t next_ = 0;
  std::map<uint64_t, int64_t> kept_, stable_;
  std::vector<std::vector<int64_t>> taken_;
};

class LineBuilder {
 public:
  LineBuilder(const JointPlan& plan, const HeldSlots& held) : plan_(plan), numbers_(plan, held) {
    for (const auto& [key, slot] : held) kept_[key] = &slot;
  }

  StepRequests build() {
    std::vector<size_t> line;
    for (size_t step = 0; step < plan_.steps.size(); ++step) line.push_back(step);
    lay(line);
    if (line.size() > 1 && unfinished_) lay(every_pair());
    return std::move(requests_);
  }

 private:
  void lay(const std::vector<size_t>& line) {
    requests_ = {};
    first_of_.clear();
    at_ = 0;
    for (const size_t step : line) lay_step(step);
    requests_.events = at_;
    follow(line);
  }

  // Returns a line that repeats and in which every step follows every step once, itself included.
  // For three steps it is 0 0 1 0 2 1 1 2 2.
  std::vector<size_t> every_pair() const {
    std::vector<size_t> line;
    for (size_t a = 0; a < plan_.steps.size(); ++a) {
      line.push_back(a);
      for (size_t b = a + 1; b < plan_.steps.size(); ++b) line.insert(line.end(), {a, b});
    }
    return line;
  }

  uint32_t add(size_t step, int64_t event, const SlotRequest& request) {
    requests_.list.push_back(request);
    requests_.place.push_back({step, event});
    return static_cast<uint32_t>(requests_.list.size() - 1);
  }

  void lay_step(size_t step) {
    const std::vector<StepEvent>& events = plan_.steps[step].events;
    const int64_t next = at_ + std::max<int64_t>(static_cast<int64_t>(events.size()), 1);
    std::map<uint64_t, uint32_t> open;  // key -> request of the slot that is held
    first_of_.push_back(static_cast<uint32_t>(requests_.list.size()));
    for (const auto& [key, slot] : kept_)
      open[key] = add(step, -1,
                      {.bytes = slot->bytes,
                       .first = at_,
                       .last = next - 1,
                       .key = numbers_.of_kept(key),
                       .pinned = slot->offset,
                       .order = {.ready = kEverything, .ready_next = kEverything}});
    for (size_t i = 0; i < events.size(); ++i) {
      const StepEvent& event = events[i];
      const int64_t at = at_ + static_cast<int64_t>(i);
      if (event.op == StepOp::kGiveBack) {
        requests_.list[open.at(event.key)].last = at;
        open.erase(event.key);
      }
      if (!event.takes()) continue;
      SlotRequest request{.bytes = event.bytes,
                          .first = at,
                          .last = SlotRequest::kForever,
                          .key = numbers_.of_take(step, i),
                          .stable = event.stable};
      const auto kept = kept_.find(event.key);
      if (kept != kept_.end()) request.pinned = kept->second->offset, request.last = next - 1;
      open[event.key] = add(step, static_cast<int64_t>(i), request);
    }
    at_ = next;
  }

  // Follows the streams along the line twice, and notes for each request the work that it waits for
  // and the work that it leaves behind.
  void follow(const std::vector<size_t>& line) {
    StreamOrder order;
    std::map<uint64_t, User> users;
    for (const int round : {0, 1}) {
      for (size_t i = 0; i < line.size(); ++i) {
        uint32_t request = first_of_[i];
        for (const auto& [key, slot] : kept_) users[key] = {request++, round};
        for (const StepEvent& event : plan_.steps[line[i]].events) {
          if (event.op == StepOp::kRecord) order.record(event.key, event.stream);
          if (event.op == StepOp::kWait) order.wait(event.key, event.stream);
          if (event.op == StepOp::kGiveBack) users.erase(event.key);
          if (event.takes()) users[event.key] = {request++, round};
          if (event.takes() || event.op == StepOp::kUse) touch(event, users, order);
        }
        if (round == 0) note_unfinished(first_of_[i], request, order);
      }
    }
  }

  struct User {
    uint32_t request;
    int round;  // round of its take
  };
  void touch(const StepEvent& event, const std::map<uint64_t, User>& users, StreamOrder& order) {
    const auto user = users.find(event.key);
    if (user == users.end()) return;
    used_ |= 1U << event.stream;
    SlotOrder& of = requests_.list[user->second.request].order;
    StreamClock& ready = user->second.round == 0 ? of.ready : of.ready_next;
    const StreamClock& known = order.known(event.stream);
    for (size_t s = 0; s < kMostStreams; ++s)
      ready[s] = event.takes() ? known[s] : std::min(ready[s], known[s]);
    const uint64_t work = order.work(event.stream);
    if (user->second.round == 0) of.done[event.stream] = work;
  }
  void note_unfinished(uint32_t from, uint32_t to, const StreamOrder& order) {
    for (uint32_t request = from; request < to; ++request)
      for (uint32_t stream = 0; stream < kMostStreams; ++stream)
        unfinished_ |= (used_ >> stream & 1) &&
                       !covers(order.known(stream), requests_.list[request].order.done);
  }

  const JointPlan& plan_;
  std::map<uint64_t, const HeldSlot*> kept_;  // ordered, so that requests are the same on all ranks
  Numbers numbers_;
  StepRequests requests_;
  std::vector<uint32_t> first_of_;  // per step of the line, its first request
  int64_t at_ = 0;
  uint32_t used_ = 0;        // streams that touch slots, a bit each
  bool unfinished_ = false;  // work of a step may go on beyond its end
};

}  // namespace

StepRequests step_requests(const JointPlan& plan, const HeldSlots& held) {
  return LineBuilder(plan, held).build();
}

}  // namespace fsccl
