#include "info_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "fsccl/fsccl.h"
#include "fsccl/insight.h"
#include "info_error.h"
#include "model_layout.h"
#include "named_file.h"
#include "whole_number.h"

namespace {

using fsccl::perf::Block;
using fsccl::perf::Model;
using fsccl::perf::ModelUnit;

// Units of the same shapes have the same layout, so only the first is shown, with their number.
struct Kind {
  const ModelUnit* unit;
  size_t units;
};

bool same_shapes(const ModelUnit& a, const ModelUnit& b) {
  return std::equal(a.params.begin(), a.params.end(), b.params.begin(), b.params.end(),
                    [](const auto& x, const auto& y) { return x.dims == y.dims; });
}

std::vector<Kind> kinds_of(const Model& model) {
  std::vector<Kind> kinds;
  for (const ModelUnit& unit : model.units) {
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) {
      return same_shapes(*kind.unit, unit);
    });
    if (known == kinds.end())
      kinds.push_back({&unit, 1});
    else
      known->units++;
  }
  return kinds;
}

struct Row {
  Kind kind;
  std::string block;
  int world = 0;
  fsccl_layout_stats_t stats = FSCCL_LAYOUT_STATS_INIT;
  double plan_us = 0;
  double fraction(uint64_t elements) const {
    return stats.elements ? static_cast<double>(elements) / static_cast<double>(stats.elements) : 0;
  }
};

nlohmann::ordered_json json_of(const Row& row) {
  return {{"unit", row.kind.unit->name},
          {"units", row.kind.units},
          {"elements", row.stats.elements},
          {"block", row.block},
          {"world", row.world},
          {"largest_shard", row.stats.largest_shard},
          {"padding", row.fraction(row.stats.padding)},
          {"bound", row.fraction(row.stats.padding_bound)},
          {"plan_us", row.plan_us}};
}

void print_table(const std::vector<Row>& rows) {
  size_t width = 4;
  for (const Row& row : rows) width = std::max(width, row.kind.unit->name.size());
  fmt::print("{:<{}} {:>5} {:>15} {:>9} {:>8} {:>14} {:>10} {:>10} {:>9}\n", "unit", width, "units",
             "elements", "block", "world", "largest shard", "padding", "bound", "plan us");
  for (const Row& row : rows)
    fmt::print("{:<{}} {:>5} {:>15} {:>9} {:>8} {:>14} {:>9.4f}% {:>9.4f}% {:>9.1f}\n",
               row.kind.unit->name, width, row.kind.units, row.stats.elements, row.block, row.world,
               row.stats.largest_shard, 100 * row.fraction(row.stats.padding),
               100 * row.fraction(row.stats.padding_bound), row.plan_us);
  fmt::print(
      "units: how many have these shapes. padding: by how much equal shards would exceed the "
      "parameters; it is neither stored nor "
      "moved. bound: no layout of such blocks has less.\n");
}

bool plan(fsccl_layout_t layout, const std::vector<fsccl_param_t>& params, Row* row) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const fsccl_status_t status = fsccl_layout_plan(layout, params.data(), params.size(), row->world,
                                                  FSCCL_ALL_RANKS, nullptr, &row->stats);
  row->plan_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  return !failed(status, fmt::format("unit {}: ", row->kind.unit->name));
}

}  // namespace

LayoutCommand::LayoutCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "layout", "how evenly a layout spreads a model's units over ranks, against a bound")) {
  command_
      ->add_option("model", model_,
                   "name of a model (an unknown one lists those there are), or a JSON file")
      ->required();
  command_->add_option("--world", world_, "numbers of ranks, separated by commas")
      ->delimiter(',')
      ->transform(whole_from_to(1, 1 << 20))
      ->capture_default_str();
  command_
      ->add_option("--block", blocks_,
                   "what a shard boundary never cuts, of tensors of two and more dimensions: "
                   "element, or RxC")
      ->delimiter(',')
      ->check(fsccl::perf::check_block)
      ->capture_default_str();
  command_->add_option("--layout", layout_, "ragged, flat or per_param")
      ->check(CLI::IsMember({"ragged", "flat", "per_param"}))
      ->capture_default_str();
  command_->add_flag("--json", json_, "as JSON: padding and bound as fractions of the elements");
  command_->footer(
      "Exit status: 0; 2 if an option is malformed or no model has the name; 1 if the file of a "
      "model cannot be used, or its units cannot be laid out.");
}

int LayoutCommand::run() const {
  const auto file = find_named(model_, "model", fsccl::perf::model_folders());
  if (!file) return 2;
  std::string error;
  const std::optional<Model> model = fsccl::perf::load_model(*file, {}, &error);
  if (!model) {
    fmt::print(stderr, "fsccl-info: {}\n", error);
    return 1;
  }
  const fsccl_layout_t layout = layout_ == "flat"        ? FSCCL_LAYOUT_FLAT
                                : layout_ == "per_param" ? FSCCL_LAYOUT_PER_PARAM
                                                         : FSCCL_LAYOUT_RAGGED;
  std::vector<Row> rows;
  for (const Kind& kind : kinds_of(*model))
    for (const std::string& block : blocks_) {
      const std::vector<fsccl_param_t> params =
          fsccl::perf::params_of(*kind.unit, fsccl::perf::parse_block(block).value_or(Block{}));
      for (const int world : world_) {
        rows.push_back({kind,
                        layout_ == "per_param" ? "row"
                        : block == "1"         ? "element"
                                               : block,
                        world});
        if (!plan(layout, params, &rows.back())) return 1;
      }
    }
  if (json_) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Row& row : rows) list.push_back(json_of(row));
    fmt::print("{}\n", list.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    print_table(rows);
  }
  return 0;  // main() flushes
}
