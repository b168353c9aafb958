#include "info_topology.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/program.h"
#include "fsccl/fsccl.h"
#include "fsccl/insight.h"
#include "info_error.h"
#include "own_input.h"
#include "topology_picture.h"
#include "whole_number.h"

namespace {

void append(void* text, const char* more, size_t bytes) {
  static_cast<std::string*>(text)->append(more, bytes);
}

bool write_file(const std::string& path, const std::string& text) {
  const fsccl::Status written = fsccl::write_output(path, text);
  if (!written.ok()) fmt::print(stderr, "fsccl-info: {}\n", written.text());
  return written.ok();
}

}  // namespace

TopologyCommand::TopologyCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "topology",
          "packages, memory, caches, cores, GPUs, network cards, and what lies between them")) {
  command_
      ->add_option("--file", file_,
                   "not this machine: hwloc's XML (lstopo machine.xml), or what --json writes")
      ->type_name("FILE");
  CLI::Option* svg = command_->add_option("--svg", svg_, "draws it into a file, too")
                         ->type_name("FILE")
                         ->check([](const std::string& name) { return file_name_problem(name); });
  command_
      ->add_option("--ranks", ranks_,
                   "ranks of each host, whose GPUs or cores the picture marks with their numbers")
      ->transform(whole_from_to(1, 1 << 16))
      ->needs(svg);
  CLI::Option* json = command_->add_flag("--json", json_, "as JSON, which --file takes");
  command_
      ->add_option("--between", between_,
                   "the way between two places, each host/device, host/core or a switch")
      ->expected(2)
      ->type_name("PLACE PLACE")
      ->excludes(json);
}

bool TopologyCommand::draw(const char* file) const {
  std::string json;
  if (failed(fsccl_topology_describe(file, FSCCL_TOPOLOGY_JSON, append, &json))) return false;
  return write_file(svg_, topology_picture(fsccl::machine_graph::read_graph(json), ranks_));
}

int TopologyCommand::run() const {
  const char* file = file_.empty() ? nullptr : file_.c_str();
  if (replaces(svg_, file_)) return 2;
  std::string text;
  const fsccl_topology_form_t form = json_ ? FSCCL_TOPOLOGY_JSON : FSCCL_TOPOLOGY_TREE;
  const fsccl_status_t status =
      between_.empty()
          ? fsccl_topology_describe(file, form, append, &text)
          : fsccl_topology_between(file, between_[0].c_str(), between_[1].c_str(), append, &text);
  if (failed(status)) return 1;
  if (!svg_.empty() && !draw(file)) return 1;
  fmt::print("{}", text);
  return 0;  // main() flushes
}
