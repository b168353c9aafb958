#include "select/kept_costs.h"

#include <sys/utsname.h>

#include <algorithm>

#include "base/build.h"
#include "base/hash.h"
#include "base/json_writer.h"
#include "base/kept_file.h"
#include "base/log.h"
#include "base/processor.h"

namespace fsccl {
namespace {

bool alike(const Tuning::Measured& a, const Tuning::Measured& b) {
  return a.machine == b.machine && a.transport == b.transport && a.link == b.link;
}

// Returns the middle one of the times that `time_of` finds in the costs.
template <class TimeOf>
double middle(const std::vector<const Costs*>& costs, const TimeOf& time_of) {
  std::vector<double> times;
  for (const Costs* one : costs) times.push_back(time_of(*one));
  const auto half = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), half, times.end());
  return *half;
}
Cost middle_of(const std::vector<const Costs*>& costs, Cost Costs::* which) {
  Cost found;
  for (size_t i = 0; i < found.ns.size(); i++)
    found.ns[i] = middle(costs, [&](const Costs& one) { return (one.*which).ns[i]; });
  return found;
}
double middle_of(const std::vector<const Costs*>& costs, double Costs::* which) {
  return middle(costs, [&](const Costs& one) { return one.*which; });
}

// A way to copy pages side by side counts if all starts found the same. How reads are priced is
// known from the starts that could read.
Costs middle_of(const std::vector<const Costs*>& costs) {
  Costs found = *costs.front();
  for (double Costs::* const which : {&Costs::exchange, &Costs::message, &Costs::copy_per_byte})
    found.*which = middle_of(costs, which);
  for (Cost Costs::* const which : {&Costs::slot_cached, &Costs::slot_streaming})
    found.*which = middle_of(costs, which);
  std::vector<const Costs*> reading;
  for (const Costs* one : costs) {
    if (one->side_by_side != found.side_by_side) found.side_by_side = SideBySide::none;
    if (one->can_read) reading.push_back(one);
  }
  found.can_read = !reading.empty();
  if (found.can_read) {
    found.read = middle_of(reading, &Costs::read);
    for (double Costs::* const which : {&Costs::read_to_slots, &Costs::read_written})
      found.*which = middle_of(reading, which);
  }
  return found;
}

}  // namespace

std::string KeptCosts::file_of(const std::string& machine, size_t slot_bytes) {
  const std::string info = processor_info();
  utsname system{};
  (void)::uname(&system);
  return kept_file_path(
      fmt::format("costs-{:016x}.json",
                  hash_of(fmt::format("{}\n{}\n{}\n{}\n{}\n{}", machine, processor_model(info),
                                      processor_field(info, "microcode"), system.release,
                                      library_build(), slot_bytes))));
}

KeptCosts::KeptCosts(std::string path, std::string machine, std::string_view transport,
                     topo::LinkClass link)
    : path_(std::move(path)) {
  key_.machine = std::move(machine);
  key_.transport = transport;
  key_.link = link;
  if (path_.empty()) return;
  Result<std::string> text = read_kept_file(path_);
  Result<Tuning> kept = text.ok() ? parse_tuning(text.value(), path_) : text.take_status();
  if (!kept.ok()) {
    FSCCL_LOG(kDebug, "{}", kept.status().text());
    return;
  }
  entries_ = std::move(kept.value().costs);
  std::vector<const Costs*> own;
  for (const Tuning::Measured& entry : entries_)
    if (alike(entry, key_)) own.push_back(&entry.costs);
  own_ = own.size();
  if (own_ >= kStarts) middle_ = middle_of(own);
}

void KeptCosts::add(const Costs& measured) {
  if (path_.empty()) return;
  if (own_ == kStarts) {  // the oldest entry is replaced
    entries_.erase(std::find_if(entries_.begin(), entries_.end(),
                                [&](const Tuning::Measured& one) { return alike(one, key_); }));
  }
  entries_.push_back(key_);
  entries_.back().costs = measured;
  const auto write = [this](JsonWriter& out) {
    const auto one = [&out](const Tuning::Measured& entry) {
      out.map({{"link", topo::traits(entry.link).name},
               {"machine", entry.machine},
               {"measured", [&] { write_costs(out, entry.costs); }},
               {"transport", entry.transport}});
    };
    out.map({{"costs", [&] { out.list(entries_, one); }}, {"fsccl_tuning", 1}});
  };
  const std::string text = write_json(write, JsonWriter::Form::lines) + '\n';
  if (const Status kept = keep_file(path_, text); !kept.ok())
    FSCCL_LOG(kInfo, "what was measured between the ranks is not kept: {}", kept.text());
}

}  // namespace fsccl
