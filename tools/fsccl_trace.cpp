// fsccl-trace: what FSCCL wrote about a run, as pages for people. Needs no job, and no library: it reads files alone.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "memory_page.h"
#include "memory_snapshot.h"

namespace {

int failed(const std::string& why) {
  fmt::print(stderr, "fsccl-trace: {}\n", why);
  return 1;
}

struct MemoryOptions {
  std::string snapshot, page, axis = "time";
  uint64_t steps = 2;
};

int write_memory_page(const MemoryOptions& options) {
  std::string error;
  const std::optional<fsccl::trace::MemorySnapshot> snapshot = fsccl::trace::read_memory_snapshot(options.snapshot, &error);
  if (!snapshot) return failed(error);
  const std::string page = memory_page(*snapshot, {options.steps, options.axis == "events"});
  if (options.page == "-") {
    const bool written = std::fwrite(page.data(), 1, page.size(), stdout) == page.size() && std::fflush(stdout) == 0;
    return written ? 0 : failed("writing the page failed");
  }
  const std::string path = options.page.empty() ? options.snapshot + ".html" : options.page;
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << page;
  file.close();
  if (!file) return failed(fmt::format("{} cannot be written: {}", path, errno ? std::strerror(errno) : "unknown"));
  fmt::print("{}\n", path);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Makes pages of what FSCCL wrote about a run. A page is one file that loads nothing else.", "fsccl-trace");
  app.require_subcommand(1);
  MemoryOptions memory;
  CLI::App* command = app.add_subcommand("memory", "who has which byte of a pool, over time and against the bounds of its plan");
  command->add_option("snapshot", memory.snapshot, "what fsccl_pool_snapshot() wrote as JSON")->required()->type_name("SNAPSHOT");
  command->add_option("-o,--output", memory.page, "where the page goes; -: to the standard output; default: SNAPSHOT.html")
      ->type_name("PAGE");
  command->add_option("--steps", memory.steps, "show the last N steps of the history on the map; 0: all of it")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--axis", memory.axis, "the map's axis: time, or events in their order, which shows short steps better")
      ->check(CLI::IsMember({"time", "events"}))
      ->capture_default_str();
  command->footer(
      "A snapshot has a history if the job ran with FSCCL_POOL_HISTORY=N: the last N events. Each rank has a pool of its own.\n"
      "PyTorch's viewer (pytorch.org/memory_viz) reads the same snapshot written to a path that ends in .pickle.");
  CLI11_PARSE(app, argc, argv);
  return write_memory_page(memory);
}
