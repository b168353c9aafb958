// The options of `fsccl-perf collectives`. They have the names and meanings of nccl-tests if it has
// such options.
#include <fmt/format.h>

#include <algorithm>

#include "command_line.h"
#include "numbers.h"

namespace fsccl::perf {
namespace {

constexpr const char* kAll = "all";
constexpr double kDefaultFactor = 4;

std::vector<std::string> with_all(std::vector<std::string> names) {
  names.push_back(kAll);
  return names;
}

std::vector<std::string> collective_names() {
  std::vector<std::string> names;
  for (const CollectiveKind& kind : collective_kinds()) names.push_back(kind.name);
  return names;
}
std::vector<std::string> dtype_names() {
  std::vector<std::string> names = {"float", "half", "double", "bfloat16"};
  for (const DtypeName& entry : reducible_dtypes()) names.push_back(entry.name);
  return names;
}
const std::vector<std::string> kOps = {"sum", "prod", "min", "max", "avg", "mulsum"};

bool asks_all(const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), kAll) != words.end();
}

}  // namespace

const CLI::Validator& size_validator() {
  static const CLI::Validator validator(
      [](std::string& text) {
        return parse_bytes(text)
                   ? std::string()
                   : fmt::format("\"{}\" is not a size: a number of bytes like 4096, 64K, 16M, 2G",
                                 text);
      },
      "SIZE");
  return validator;
}

void CollectivesCommand::add_to(CLI::App* command) {
  const auto list = [&](const char* name, std::vector<std::string>& words,
                        const std::vector<std::string>& known, const char* text) {
    command->add_option(name, words, text)
        ->delimiter(',')
        ->check(CLI::IsMember(known))
        ->type_name("LIST");
  };
  const auto number = [&](const char* name, int& value, int least, int most, const char* text) {
    command->add_option(name, value, text)->check(CLI::Range(least, most))->type_name("N");
  };
  const std::string known =
      fmt::format("which, separated by commas, or all: {}", fmt::join(collective_names(), ", "));
  list("--coll", collectives_, with_all(collective_names()), known.c_str());
  command->add_option("-b,--minbytes", first_, "smallest size")->check(size_validator());
  command->add_option("-e,--maxbytes", last_, "largest size")->check(size_validator());
  CLI::Option* increment = command->add_option("-i,--stepbytes", increment_,
                                               "each size is this much more than the one before");
  increment->check(size_validator());
  command
      ->add_option("-f,--stepfactor", factor_,
                   "each size is this many times the one before (4 without -i and -f)")
      ->check(CLI::Range(1.0, 1e9))
      ->type_name("X")
      ->excludes(increment);
  number("-n,--iters", options_.iterations, 1, 1'000'000, "samples of each size");
  number("-w,--warmup_iters", options_.warmup, 0, 1'000'000, "samples before them");
  number("-m,--agg_iters", options_.calls, 0, 10'000,
         "calls in a sample; 0: 1 above 20 us, else as many as last 40 us (ranks that share cores: "
         "2 ms and 4 ms)");
  number("-c,--check", check_, 0, 1,
         "1: check every element of every sample; 0: nothing is checked");
  list("-d,--datatype", dtypes_, with_all(dtype_names()),
       "float, half, double, bfloat16, int8 .. int64, uint8 .. uint64 (also fp32, fp16, fp64, "
       "bf16), or all");
  std::vector<std::string> ops = with_all(kOps);
  ops.push_back("premul");
  list("-o,--op", ops_, ops,
       "sum, prod, min, max, avg, mulsum (each contribution times 0.5, then the sum), or all");
  number("-r,--root", options_.root, 0, 1 << 20, "of broadcast, reduce, gather and scatter");
  list("--memory", memories_, {"caller", "pool", "shared", kAll},
       "caller: plain memory of the caller; pool: blocks of the library's pool; shared: one slot "
       "per host, each rank's copy into it "
       "counted (all_gather and broadcast)");
  command->add_option("--in-place", in_place_, "no, yes or both")
      ->check(CLI::IsMember({"no", "yes", "both"}))
      ->type_name("WHICH");
  command
      ->add_option("--report", options_.report,
                   "write an HTML page: bandwidth by size against the machine's limit")
      ->default_str("")
      ->type_name("FILE");
  command->footer(
      "Options, columns, size, count, algbw and busbw are those of nccl-tests; both bandwidths are "
      "from the median time (p50).\n"
      "size: all-gather and gather the output, reduce-scatter, scatter and all-to-all the input, "
      "else the buffer.\n"
      "algbw = size / time; busbw = algbw x (n-1)/n (all-gather, reduce-scatter, gather, scatter, "
      "all-to-all), x 2(n-1)/n "
      "(all-reduce), x 1 (broadcast, reduce, send-recv).\n"
      "The uneven (_v) forms deal out the same elements 3 : 1 to even and odd ranks. What cannot "
      "be measured is named and left "
      "out.\n"
      "Every element of the results is checked, on data that change with every sample. Exit "
      "status: 0, 1 when an element is wrong "
      "or a call failed, 2 for bad options.");
}

std::string CollectivesCommand::finish(CollectivesOptions* options) const {
  *options = options_;
  options->check = check_ == 1;
  options->skip_unavailable = asks_all(collectives_);
  for (const std::string& name : options->skip_unavailable ? collective_names() : collectives_)
    options->collectives.push_back(find_collective(name));
  for (const Memory memory : {Memory::kCaller, Memory::kPool, Memory::kShared})
    if (asks_all(memories_) ||
        std::find(memories_.begin(), memories_.end(), memory_name(memory)) != memories_.end())
      options->memories.push_back(memory);
  if (in_place_ != "yes") options->places.push_back(false);
  if (in_place_ != "no") options->places.push_back(true);
  if (asks_all(dtypes_))
    for (const DtypeName& entry : reducible_dtypes()) options->dtypes.push_back(entry.dtype);
  else
    for (const std::string& name : dtypes_) options->dtypes.push_back(*parse_dtype(name));
  for (const std::string& name : asks_all(ops_) ? kOps : ops_)
    options->ops.push_back(*parse_op(name));
  const auto is_integer = [](fsccl_dtype_t dtype) { return dtype <= FSCCL_UINT64; };
  if (ops_.size() == 1 && options->ops.size() == 1 && options->ops[0].kind == FSCCL_OP_PREMUL_SUM &&
      std::all_of(options->dtypes.begin(), options->dtypes.end(), is_integer))
    return fmt::format(
        "--op {} needs a floating-point --datatype (half, bfloat16, float, double), not {}",
        ops_[0], fmt::join(dtypes_, ","));
  const uint64_t first = *parse_bytes(first_), last = *parse_bytes(last_);
  const uint64_t increment = increment_.empty() ? 0 : *parse_bytes(increment_);
  if (increment > 0 && last >= first && (last - first) / increment >= kMostSizes)
    return fmt::format("--stepbytes {} makes more than {} sizes: give a larger one", increment_,
                       kMostSizes);
  if (last > first && !increment_.empty() && increment == 0)
    return "--stepbytes 0 never gets to --maxbytes: give a larger one";
  if (last > first && increment_.empty() && factor_ == 1.0)
    return "--stepfactor 1 never gets to --maxbytes: give a larger one";
  if (last > first && increment_.empty() && first == 0)
    return "--minbytes 0 never gets to --maxbytes by a factor: give --stepbytes";
  const double factor = factor_.value_or(kDefaultFactor);
  options->sizes =
      increment_.empty() ? size_sweep(first, last, factor) : size_steps(first, last, increment);
  return sweep_problem(options->sizes, first_, last_, factor);
}

}  // namespace fsccl::perf
