// Tests the time of a step: two streams, prices, calibration, and what is refused.
#include <gmock/gmock.h>

#include <algorithm>

#include "fixtures.h"
#include "forecast/report.h"
#include "forecast/search.h"

namespace fsccl::forecast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<UnitTimes> times(size_t units, double gather, double reduce, double forward) {
  UnitTimes one;
  one.price.gather.ns = gather;
  one.price.reduce.ns = reduce;
  one.forward_ns = forward;
  one.backward_ns = 2 * forward;
  return std::vector<UnitTimes>(units, one);
}

TEST(Step, HidesWhatComputationCovers) {
  const Model model = model_of(kSmall);
  const std::vector<bool> kept(model.units.size(), false);
  const auto events = step_events(model, 1, false);
  // Computation is longer than communication. The first two gathers are exposed, because looking up
  // embeddings takes no time, and so are the last two reductions, which end the step. The gather at
  // the turn is covered by the head.
  const Timeline covered = simulate(events, times(13, 10, 10, 100), kept, 1, true, 0);
  EXPECT_DOUBLE_EQ(covered.compute_ns, 13 * 300);
  EXPECT_DOUBLE_EQ(covered.exposed_ns, 40);
  EXPECT_DOUBLE_EQ(covered.step_ns, 13 * 300 + 40);
  // Communication is longer. The step takes as long as communication, and the computation at the
  // end that nothing covers.
  const Timeline bare = simulate(events, times(13, 1000, 1000, 1), kept, 1, true, 0);
  EXPECT_DOUBLE_EQ(bare.communication_ns, (13 + 12 + 13) * 1000);
  EXPECT_GE(bare.step_ns, bare.communication_ns);
  EXPECT_LE(bare.step_ns, bare.communication_ns + 10);
  // Without prefetch every gather is waited for, but for that at the turn.
  const Timeline late =
      simulate(step_events(model, 0, false), times(13, 10, 0, 100), kept, 1, true, 0);
  EXPECT_DOUBLE_EQ(late.exposed_ns, 24 * 10);
}

TEST(Step, CopiesOfAProcessorTakeItsTime) {
  const Model model = model_of(kSmall);
  const std::vector<bool> kept(model.units.size(), false);
  auto units = times(13, 10, 10, 100);
  for (UnitTimes& unit : units) unit.price.gather.busy_ns = unit.price.reduce.busy_ns = 10;
  const Timeline line = simulate(step_events(model, 1, false), units, kept, 1, false, 0);
  EXPECT_NEAR(line.exposed_ns, 38 * 10, 30);
}

// Prices a layer of kSmall on `ranks` ranks of a machine, with these figures as measured there.
UnitPrice price_of_layer(const nlohmann::json& figures, const nlohmann::json& hosts = {},
                         int ranks = 2) {
  nlohmann::json json = nlohmann::json::parse(kHosts);
  json["measured"] = {
      {"exchange_ns", 300}, {"slots_ns", {60, 250, 11000}}, {"copy_ns_per_kib", 100}};
  if (!figures.is_null()) json["measured"].update(figures);
  if (!hosts.is_null()) json.update(hosts);
  const Model model = model_of(kSmall);
  StepConfig setup;
  setup.ranks = ranks;
  const Machine machine = machine_of(json.dump().c_str());
  const UnitLayout places =
      UnitLayout::make(model.units[1], setup, shard_group(setup, machine), true).take();
  return price_unit(places, setup, machine);
}

// The price of a byte that is read or written can be measured separately for gathers and for
// reductions. One of two ranks reads 4 bytes and writes 2 for each element that it gathers, and
// reads 4 and writes 4 for each element that it reduces. A price that was not measured is that of
// the bytes read alone.
TEST(Step, MeasuredGathersAndReductionsHavePricesOfTheirOwn) {
  const UnitPrice plain = price_of_layer({}),
                  gathers = price_of_layer({{"gather_ns_per_kib", 200}}),
                  reductions = price_of_layer({{"reduce_ns_per_kib", 200}});
  EXPECT_NEAR(gathers.gather.ns, 2 * 1.5 * plain.gather.ns, 0.01 * plain.gather.ns);
  EXPECT_DOUBLE_EQ(gathers.reduce.ns, plain.reduce.ns);
  EXPECT_NEAR(reductions.reduce.ns, 2 * 2 * plain.reduce.ns, 0.01 * plain.reduce.ns);
  EXPECT_DOUBLE_EQ(reductions.gather.ns, plain.gather.ns);
}

// The layer has 12.6 million elements. One of two ranks reads and writes 38 MB to gather it, and
// 50 MB to reduce it.
TEST(Step, PassesBelowTheStreamingBytesHaveThePriceOfTheCaches) {
  const nlohmann::json prices = {{"gather_ns_per_kib", 200},
                                 {"gather_cached_ns_per_kib", 300},
                                 {"reduce_ns_per_kib", 200},
                                 {"reduce_cached_ns_per_kib", 400}};
  const auto with = [&](uint64_t bytes) {
    nlohmann::json figures = prices;
    figures["streaming_bytes"] = bytes;
    return price_of_layer(figures);
  };
  const UnitPrice past = with(30'000'000), between = with(45'000'000), cached = with(60'000'000);
  EXPECT_NEAR(between.gather.ns, 1.5 * past.gather.ns, 0.01 * past.gather.ns);
  EXPECT_DOUBLE_EQ(between.reduce.ns, past.reduce.ns);
  EXPECT_DOUBLE_EQ(cached.gather.ns, between.gather.ns);
  EXPECT_NEAR(cached.reduce.ns, 2 * past.reduce.ns, 0.01 * past.reduce.ns);
}

TEST(Step, RanksThatShareACoreTakeTurns) {
  const nlohmann::json shared = {{"ranks_per_host", 2}, {"cores_per_host", 1}};
  const UnitPrice alone = price_of_layer({}), turns = price_of_layer({}, shared);
  EXPECT_NEAR(turns.gather.ns, 2 * alone.gather.ns, 0.02 * alone.gather.ns);
  EXPECT_NEAR(turns.reduce.ns, 2 * alone.reduce.ns, 0.02 * alone.reduce.ns);
}

// With one core a rank, TCP's processor time is less than the time on the wire, and hidden by it.
// With half a core a rank it is more.
TEST(Step, TcpTakesTimeOfTheProcessor) {
  const nlohmann::json network = {{"network_ns_per_kib", 100}},
                       two_hosts = {{"ranks_per_host", 2}, {"cores_per_host", 2}};
  const UnitPrice without = price_of_layer({}, two_hosts, 4),
                  with = price_of_layer(network, two_hosts, 4);
  EXPECT_DOUBLE_EQ(with.gather.ns, without.gather.ns);
  // The wire itself is not work of the processor.
  EXPECT_LT(with.gather.busy_ns, without.gather.busy_ns);
  const nlohmann::json slow = {{"network_ns_per_kib", 1000}};
  const UnitPrice bound = price_of_layer(slow, two_hosts, 4),
                  shared = price_of_layer(slow, {{"ranks_per_host", 2}, {"cores_per_host", 1}}, 4);
  EXPECT_GT(bound.gather.ns, 2 * without.gather.ns);
  EXPECT_GT(shared.gather.ns, 1.9 * bound.gather.ns);
}

TEST(Step, MicroBatchesRepeatAllButTheUpdate) {
  const Model model = model_of(kSmall);
  const std::vector<bool> kept(model.units.size(), false);
  const auto events = step_events(model, 1, false);
  const double one = simulate(events, times(13, 10, 10, 100), kept, 1, true, 0).step_ns;
  EXPECT_NEAR(simulate(events, times(13, 10, 10, 100), kept, 4, true, 7).step_ns, 4 * one + 7, 40);
}

// Micro-batches that are like the one before are not simulated, and their times are added.
TEST(Step, ManyMicroBatchesAreAsManyAsFew) {
  const Model model = model_of(kSmall);
  const std::vector<bool> kept(model.units.size(), false);
  const auto events = step_events(model, 1, false);
  for (const bool overlaps : {true, false})
    for (const double gather : {10.0, 90.0, 400.0}) {
      const std::vector<UnitTimes> units = times(13, gather, 130, 100);
      const auto at = [&](int count) { return simulate(events, units, kept, count, overlaps, 7); };
      const Timeline few = at(40), more = at(41), many = at(65'536);
      const double batches = 65'536 - 40;
      EXPECT_NEAR(many.step_ns, few.step_ns + batches * (more.step_ns - few.step_ns),
                  1e-6 * many.step_ns);
      EXPECT_NEAR(many.exposed_ns, few.exposed_ns + batches * (more.exposed_ns - few.exposed_ns),
                  1e-6 * many.step_ns);
      EXPECT_NEAR(many.compute_ns, 65'536 * at(1).compute_ns, 1e-6 * many.compute_ns);
      EXPECT_NEAR(many.communication_ns, 65'536 * at(1).communication_ns,
                  1e-6 * many.communication_ns);
      EXPECT_NEAR(many.step_ns, many.compute_ns + many.exposed_ns + 7, 1e-6 * many.step_ns);
      EXPECT_EQ(many.spans.size(), few.spans.size());
      EXPECT_EQ(many.event_ns, few.event_ns);
    }
}

TEST(Step, ExposedAndHiddenAddUpByUnit) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 64;
  const Forecast forecast = forecaster.run(setup).take();
  double exposed = 0, communication = 0;
  for (const UnitReport& unit : forecast.line.units)
    exposed += unit.exposed_ns, communication += unit.communication_ns;
  EXPECT_NEAR(exposed, forecast.line.exposed_ns, 1);
  EXPECT_NEAR(communication, forecast.line.communication_ns, 1);
  EXPECT_NEAR(forecast.line.step_ns,
              forecast.line.compute_ns + forecast.line.exposed_ns + forecast.line.optimizer_ns, 1);
  EXPECT_LT(forecast.low_ns, forecast.line.step_ns);
  EXPECT_GT(forecast.high_ns, forecast.line.step_ns);
  EXPECT_GT(forecast.between_bytes, 0);
}

// A unit of little communication waits for that of a large one before it. The wait is the large
// one's, and none exposes more than it communicates.
TEST(Step, AWaitBelongsToWhatIsCommunicatedMeanwhile) {
  const Model model = model_of(kSmall);
  const std::vector<bool> kept(model.units.size(), false);
  for (const int batches : {1, 3}) {
    std::vector<UnitTimes> units = times(13, 10, 10, 100);
    for (size_t u = 1; u < units.size(); u += 2)
      units[u].price.gather.ns = units[u].price.reduce.ns = 900;
    const Timeline line = simulate(step_events(model, 1, false), units, kept, batches, true, 7);
    double exposed = 0, hidden = 0;
    for (const UnitReport& unit : line.units) {
      EXPECT_LE(unit.exposed_ns, unit.communication_ns + 1e-6);
      exposed += unit.exposed_ns;
      hidden += unit.communication_ns - unit.exposed_ns;
    }
    EXPECT_NEAR(exposed, line.exposed_ns, 1e-6);
    EXPECT_NEAR(hidden, line.communication_ns - line.exposed_ns, 1e-6);
  }
}

TEST(Step, CalibrationReproducesItsPoint) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 8;
  setup.batch = 16;
  const double before = forecaster.run(setup).take().line.step_ns * 1e-9;
  ASSERT_TRUE(forecaster.calibrate(setup, 1.5 * before, 0.05, "a test").ok());
  EXPECT_NEAR(forecaster.run(setup).take().line.step_ns * 1e-9, 1.5 * before, 1e-6);
  const Status beyond = forecaster.calibrate(setup, before / 1000, 0.05, "a test");
  ASSERT_FALSE(beyond.ok());
  EXPECT_NE(beyond.text().find("correct \"tflops\""), std::string::npos);
}

TEST(Step, SlowerThingsTakeLonger) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 64;
  const double now = forecaster.run(setup).take().line.step_ns;
  const std::vector<WhatIf> answers = what_if(forecaster, setup).take();
  ASSERT_EQ(answers.size(), 5u);
  EXPECT_LE(answers[0].step_ns, now);
  EXPECT_GT(answers[1].step_ns, now);
  EXPECT_GT(answers[2].step_ns, answers[1].step_ns);
  EXPECT_GT(answers[3].step_ns, now);
}

TEST(Step, ACodecLowersBytesBetweenHosts) {
  Forecaster forecaster(model_of(kSmall), machine_of(kHosts));
  StepConfig setup;
  setup.ranks = 64;
  const Forecast plain = forecaster.run(setup).take();
  setup.codec_ratio = 2;
  const Forecast coded = forecaster.run(setup).take();
  EXPECT_LT(coded.between_bytes, 0.9 * plain.between_bytes);
  EXPECT_LT(coded.line.communication_ns, plain.line.communication_ns);
  setup.codec_gb_per_s = 0.01;
  EXPECT_GT(forecaster.run(setup).take().line.step_ns, plain.line.step_ns);
}

// The ratios are those of docs/codecs.md.
TEST(Step, CodecsHaveTheSizesThatTheyDocument) {
  const auto ratio_of = [](const char* codec, const char* wire) {
    StepConfig setup;
    const nlohmann::json given = {{"codec", codec}, {"wire", wire}};
    const Status read = read_step_config(value_of(given.dump()), &setup);
    EXPECT_TRUE(read.ok()) << read.text();
    return setup.codec_ratio;
  };
  for (const char* codec : {"int8", "fp8", "mxfp8"}) {
    EXPECT_NEAR(1 / ratio_of(codec, "bf16"), 0.52, 0.005) << codec;
    EXPECT_NEAR(1 / ratio_of(codec, "fp32"), 0.26, 0.005) << codec;
  }
  EXPECT_EQ(ratio_of("delta", "fp16"), 4);
  StepConfig setup;
  const auto said = [&](const char* json) {
    return read_step_config(value_of(json), &setup).text();
  };
  EXPECT_THAT(said(R"({"codec": "delta", "wire": "fp32"})"), HasSubstr("takes 16 bits"));
  EXPECT_THAT(said(R"({"codec": "zip"})"), HasSubstr("give delta, int8, fp8 or mxfp8"));
  EXPECT_THAT(said(R"({"codec": "int8", "codec_ratio": 2})"), HasSubstr("leave one of the two"));
}

TEST(Step, CopiesOfAHostExchangeShardsAlone) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 64;
  const Forecast full = forecaster.run(setup).take();
  setup.shard_over = 8;
  const Forecast hybrid = forecaster.run(setup).take();
  EXPECT_EQ(hybrid.units[1].price.gather.between_bytes, 0);
  EXPECT_GT(hybrid.units[1].price.replicas.ns, 0);
  EXPECT_EQ(full.units[1].price.replicas.ns, 0);
  // Only sums of shards travel between hosts, there and back, in fp32.
  const double shard = static_cast<double>(hybrid.memory.sharded_gradients);
  EXPECT_NEAR(hybrid.between_bytes, 2 * shard * 7 / 8, 0.01 * shard);
  EXPECT_NEAR(static_cast<double>(hybrid.memory.shards),
              8.0 * static_cast<double>(full.memory.shards), 1e6);
}

// By parameter, each gradient is reduced by an operation of its own, and a GPU gathers each
// parameter so. Each operation has its latency.
TEST(Step, EachParameterHasOperationsOfItsOwn) {
  constexpr const char* kAlone = R"({"name": "alone", "units": [
      {"name": "root", "params": [["up_proj.weight", [4096, 1024]]]}]})";
  for (const char* const machine : {kGpus, kHosts}) {
    Forecaster forecaster(model_of(kSmall), machine_of(machine)),
        of_one(model_of(kAlone), machine_of(machine));
    StepConfig setup;
    setup.ranks = 64;
    const UnitPrice whole = forecaster.run(setup).take().units[1].price,
                    single = of_one.run(setup).take().units[0].price;
    setup.by_parameter = true;
    const Forecast forecast = forecaster.run(setup).take();
    const UnitPrice& each = forecast.units[1].price;
    ASSERT_EQ(each.reduce_of.size(), 7u);
    EXPECT_EQ(each.reduce_of[4].ns, single.reduce.ns);  // that of up_proj
    double sum = 0;
    for (const Carried& one : each.reduce_of) sum += one.ns;
    EXPECT_NEAR(each.reduce.ns, sum, 1);
    EXPECT_GT(each.reduce.ns, whole.reduce.ns);
    EXPECT_EQ(each.gather.ns > whole.gather.ns, machine == kGpus);
    EXPECT_NEAR(forecast.line.units[1].communication_ns, 2 * each.gather.ns + sum, 1);
  }
}

// The library sums no copies of units by parameter, so no setup has both.
TEST(Step, UnitsByParameterHaveNoCopies) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 64;
  setup.by_parameter = true;
  EXPECT_EQ(forecaster.misfit(setup), "");
  for (const Choice& choice : search(forecaster, setup).take())
    EXPECT_TRUE(!choice.setup.by_parameter || choice.setup.shared_by() == 64);
  setup.shard_over = 8;
  EXPECT_THAT(forecaster.misfit(setup), HasSubstr("leave by_parameter out, or shard over all"));
}

// If a host has several copies, they are summed within it before and after the exchange between
// hosts, whose bytes do not grow with the copies.
TEST(Step, CopiesWithinAHostAreSummedThere) {
  Forecaster forecaster(model_of(kSmall), machine_of(kHosts));
  const auto replicas_of = [&](int degree) {
    StepConfig setup;
    setup.ranks = 16;
    setup.shard_over = degree;
    return forecaster.run(setup).take().units[1].price.replicas;
  };
  const Carried one = replicas_of(8), two = replicas_of(4), eight = replicas_of(1);
  EXPECT_EQ(one.within_bytes, 0);
  EXPECT_NEAR(two.between_bytes, one.between_bytes, 0.001 * one.between_bytes);
  EXPECT_NEAR(eight.between_bytes, one.between_bytes, 0.001 * one.between_bytes);
  const double unit = 4.0 * static_cast<double>(forecaster.model().units[1].elements());
  EXPECT_NEAR(two.within_bytes, 2 * (unit / 4) / 2, 0.001 * unit);
  EXPECT_NEAR(eight.within_bytes, 2 * unit * 7 / 8, 0.001 * unit);
  EXPECT_GT(two.ns, 1.05 * one.ns);
  EXPECT_GT(eight.ns, 1.2 * two.ns);
}

// Without the library, FSDP2 sums copies in the type in which it reduces, and gives each rank an
// equal shard of each parameter, which is padding for most ranks if its first dimension is short.
TEST(Step, NcclAloneMovesWhatFsdp2Moves) {
  nlohmann::json json = nlohmann::json::parse(kGpus);
  json["carrier"] = "nccl";
  Forecaster stock(model_of(kSmall), machine_of(json.dump().c_str()));
  StepConfig setup;
  setup.ranks = 64;
  setup.shard_over = 8;
  const double half = stock.run(setup).take().units[1].price.replicas.between_bytes;
  setup.reduce = FSCCL_FLOAT32;
  EXPECT_NEAR(stock.run(setup).take().units[1].price.replicas.between_bytes, 2 * half, 1);
  constexpr const char* kShort = R"({"name": "short", "units": [
      {"name": "root", "params": [["head.weight", [64, 64]]]},
      {"name": "layers.0", "params": [["experts.up_proj.weight", [8, 4096]]]}]})";
  Forecaster padded(model_of(kShort), machine_of(json.dump().c_str())),
      plain(model_of(kShort), machine_of(kGpus));
  setup.shard_over = 0;
  const auto moved = [&](Forecaster& one, const StepConfig& with) {
    return one.run(with).take().units[1].price.gather.between_bytes;
  };
  StepConfig flat = setup;
  StepConfig lacking = setup;
  lacking.by_parameter = true;
  EXPECT_THAT(stock.misfit(lacking), HasSubstr("has no slots by parameter: leave that out"));
  flat.layout = FSCCL_LAYOUT_FLAT;
  EXPECT_NEAR(moved(padded, setup), 8 * moved(padded, flat), 1);
  EXPECT_NEAR(moved(plain, setup), moved(plain, flat), 1);
}

// Returns the advice for a model whose layer has few and long rows, where a rank may take what the
// best setup takes without a limit, less half of its shards and what belongs to them.
std::string advice_on(const char* layout, const nlohmann::json& change = nlohmann::json::object()) {
  const nlohmann::json model = nlohmann::json::parse(R"({"name": "short", "units": [
      {"name": "root", "params": [["head.weight", [64, 64]]]},
      {"name": "layers.0", "params": [["up_proj.weight", [8, 1048576]]]}]})");
  nlohmann::json given = {{"model", model},      {"machine", nlohmann::json::parse(kGpus)},
                          {"ranks", 64},         {"batch", 1},
                          {"sequence", 1},       {"layout", layout},
                          {"checkpoint", "full"}};
  given.merge_patch(change);
  const auto answer = [&] { return nlohmann::json::parse(forecast_json(given.dump()).take()); };
  given["search"] = true;
  given["machine"]["memory_bytes"] = 1;
  const uint64_t least = answer()["search"][0]["memory_bytes"].get<uint64_t>();
  const nlohmann::json memory = answer()["memory"];
  const uint64_t spread = memory["shards_bytes"].get<uint64_t>() +
                          memory["sharded_gradients_bytes"].get<uint64_t>() +
                          memory["optimizer_bytes"].get<uint64_t>();
  given["machine"]["memory_bytes"] = least - spread / 2;
  return answer()["advice"].get<std::string>();
}

TEST(Step, AnUpdateReadsAndWritesShardsGradientsAndStates) {
  const auto touches = [](const char* json) {
    StepConfig setup;
    EXPECT_TRUE(read_step_config(value_of(json), &setup).ok());
    return setup.optimizer_touches();
  };
  EXPECT_EQ(touches("{}"), 28);
  EXPECT_EQ(touches(R"({"optimizer": "sgd"})"), 12);
  EXPECT_EQ(touches(R"({"optimizer": "none"})"), 0);
  EXPECT_EQ(touches(R"({"optimizer_bytes": 2})"), 16);  // 8-bit states
  EXPECT_EQ(touches(R"({"shard_type": "bf16", "gradient_type": "bf16"})"), 22);
  StepConfig setup;
  EXPECT_THAT(
      read_step_config(value_of(R"({"optimizer": "none", "optimizer_bytes": 8})"), &setup).text(),
      HasSubstr("leave one of the two out"));
}

// A rank that holds a whole expert holds as much on more ranks, too; another layout divides it.
TEST(Step, AdviceOnUnevenShardsNamesTheLayout) {
  EXPECT_THAT(advice_on("per_param"), HasSubstr("the layout flat or ragged"));
  EXPECT_THAT(advice_on("per_param"), Not(HasSubstr("more ranks")));
  EXPECT_THAT(advice_on("per_param"), Not(HasSubstr("smaller batch")));
  EXPECT_THAT(advice_on("flat"), HasSubstr("less with more ranks"));
}

TEST(Step, AdviceSaysWhereMoreRanksAndTokensCannotHelp) {
  const nlohmann::json context = {{"memory_limit_bytes", 1 << 20}};
  EXPECT_THAT(advice_on("flat", context), HasSubstr("this limit is too small for this model"));
  EXPECT_THAT(advice_on("flat", context), Not(HasSubstr("more ranks, or")));
}

// The ranks of a host share its memory, unless it is known what each of them has.
TEST(Step, RanksOfAHostShareItsMemory) {
  nlohmann::json json = nlohmann::json::parse(kHosts);
  json["host_memory_bytes"] = 1 << 20;
  const Forecaster shared(model_of(kSmall), machine_of(json.dump().c_str()));
  const auto limit_of = [](const Forecaster& forecaster, int ranks) {
    StepConfig setup;
    setup.ranks = ranks;
    return forecaster.memory_limit(setup);
  };
  EXPECT_EQ(limit_of(shared, 1), 1 << 20);
  EXPECT_EQ(limit_of(shared, 4), 1 << 18);
  EXPECT_EQ(limit_of(shared, 64), 1 << 17);
  json["memory_bytes"] = 1 << 10;
  const Forecaster given(model_of(kSmall), machine_of(json.dump().c_str()));
  EXPECT_EQ(limit_of(given, 1), 1 << 10);
}

// Ranks that take turns on their host's cores compute and copy that much slower.
TEST(Step, RanksThatShareCoresTakeTurns) {
  nlohmann::json json = nlohmann::json::parse(kHosts);
  Forecaster alone(model_of(kSmall), machine_of(kHosts));
  json["cores_per_host"] = alone.machine().ranks_per_host / 2;
  Forecaster shared(model_of(kSmall), machine_of(json.dump().c_str()));
  StepConfig setup;
  setup.ranks = 2 * alone.machine().ranks_per_host;
  const Timeline one = alone.run(setup).take().line, two = shared.run(setup).take().line;
  EXPECT_NEAR(two.compute_ns, 2 * one.compute_ns, 1);
  EXPECT_GT(two.communication_ns, 1.1 * one.communication_ns);
  // An update is the work of a core, too.
  EXPECT_NEAR(two.optimizer_ns, 2 * one.optimizer_ns, 1);
  // The half of the ranks have a core each.
  const Machine half = machine_of(json.dump().c_str(), "bf16", alone.machine().ranks_per_host / 2);
  EXPECT_EQ(half.flops, alone.machine().flops);
  // The ranks of each forecast decide how many of them share a core.
  Forecaster few(model_of(kSmall), half), many(model_of(kSmall), half.with_ranks(setup.ranks));
  for (const int ranks : {half.ranks_per_host / 2, setup.ranks}) {
    StepConfig other = setup;
    other.ranks = ranks;
    const Forecast first = few.run(other).take(), second = many.run(other).take();
    EXPECT_EQ(first.line.step_ns, shared.run(other).take().line.step_ns) << ranks;
    EXPECT_EQ(first.line.step_ns, second.line.step_ns) << ranks;
    EXPECT_EQ(few.mfu(first), many.mfu(second)) << ranks;
  }
  json["cores_per_host"] = 0;
  const Result<Machine> none = read_machine(value_of(json.dump()), "bf16", 8);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().text().find("of 1 or more"), std::string::npos);
}

TEST(Step, StrangeNumbersAreRefusedOrHarmless) {
  const nlohmann::json model = nlohmann::json::parse(kSmall),
                       machine = nlohmann::json::parse(kHosts);
  for (const char* changes :
       {R"({"model": 5})", R"({"model": {"name": "x", "units": [5]}})",
        R"({"model": {"name": "x", "units": [{"repeat": 3, "first": 0, "units": [[]]}]}})",
        R"({"model": {"name": "x", "units": [{"name": "a", "params": [["w", [9e30, 2]]]}]}})",
        R"({"model": {"name": "x", "units": [{"name": "a",
                     "params": [["w", [18446744073709551615]]]}]}})",
        R"({"model": {"name": "x", "units": [{"name": "a", "params": [["w", [0, 4]]]}]}})",
        R"({"machine": {"tflops": "many"}})",
        R"({"machine": {"measured": {"slots_ns": [1, "x", 3]}}})",
        R"({"machine": {"between": []}})", R"({"ranks": 1e30})", R"({"calibration": 7})",
        R"({"calibration": {"step_s": 1, "tokens_per_s_per_rank": 1}})", R"({"search": 1})"}) {
    nlohmann::json given = {{"model", model}, {"machine", machine}, {"ranks", 64}};
    const nlohmann::json change = nlohmann::json::parse(changes);
    for (const auto& [key, value] : change.items()) {
      if (key == "machine")
        given[key].update(value);
      else
        given[key] = value;
    }
    const Result<std::string> answer = forecast_json(given.dump());
    ASSERT_FALSE(answer.ok()) << changes;
    EXPECT_GT(answer.status().text().size(), 20U) << changes;
  }
  nlohmann::json large = {{"model", model}, {"machine", machine}, {"ranks", 1 << 20}};
  large.update({{"batch", 1 << 20}, {"sequence", 1 << 27}, {"accumulate", 1}});
  EXPECT_TRUE(forecast_json(large.dump()).ok());
}

TEST(Step, SaysWhatIsWrongAndWhatToDo) {
  const nlohmann::json model = nlohmann::json::parse(kSmall),
                       machine = nlohmann::json::parse(kGpus);
  const auto said = [&](nlohmann::json changes) {
    nlohmann::json given = {{"model", model}, {"machine", machine}, {"ranks", 64}};
    given.merge_patch(changes);
    const Result<std::string> answer = forecast_json(given.dump());
    return answer.ok() ? std::string("fine") : answer.status().text();
  };
  EXPECT_EQ(said(nlohmann::json::object()), "fine");
  const std::vector<std::pair<nlohmann::json, const char*>> cases = {
      {{{"shard_over", 48}}, "divide a host or be full hosts; give 32 or 64"},
      {{{"shard_over", 5}, {"ranks", 24}}, "give 4 or 8"},  // 6 divides the ranks, but no host
      {{{"shard_over", 10}, {"ranks", 48}}, "give 8 or 16"},
      {{{"machine", {{"cores_per_host", 2}}}}, "leave \"cores_per_host\" out"},
      {{{"ranks", 65}}, "give 64 or 72 ranks"},
      {{{"compute", "fp8"}}, "give \"tflops\" for this type"},
      {{{"layout", "diagonal"}}, "give per_param, flat or ragged"},
      {{{"optimizer", "magic"}}, "give adam, momentum, sgd or none"},
      {{{"by_parameter", true}, {"keep_bytes", 5}}, "leave one of the two out"},
      {{{"calibration", {{"step_s", 1}, {"configuration", {{"ranks", 60}}}}}},
       "calibration.configuration, whose other keys are those of this forecast: 60 ranks"},
      {{{"batch", 0}}, "batch must be a whole number from 1"},
      {{{"surprise", 1}}, "\"surprise\"; known are model, machine"},
      {{{"machine", {{"topology", "/nowhere.json"}}}}, "/nowhere.json"},
      {{{"machine", {{"ranks_per_host", 0}}}}, "give \"ranks_per_host\" or \"topology\""},
      {{{"machine", {{"within", {{"link", "string"}}}}}}, "no class of links"},
      {{{"calibration", {{"step_s", 0}}}}, "calibration needs either"},
      {{{"codec_ratio", 0.5}}, "shortens by 1 or more"},
      {{{"codec_gb_per_s", 10}}, "give codec_ratio"},
      {{{"calibration", {{"step_s", 1}, {"configuration", {{"compute", "fp32"}}}}}},
       "measure a step in \"bf16\""},
      {{{"calibration", {{"step_s", 1}, {"configuration", {{"memory_limit_bytes", 1}}}}}},
       "\"memory_limit_bytes\"; known are"}};
  for (const auto& [changes, words] : cases)
    EXPECT_NE(said(changes).find(words), std::string::npos) << said(changes);
  // A step that was measured without a codec calibrates the forecast of one with it.
  EXPECT_EQ(said({{"codec_ratio", 2},
                  {"codec_gb_per_s", 10},
                  {"calibration",
                   {{"step_s", 1e-1}, {"configuration", {{"codec_ratio", 1}, {"batch", 8}}}}}}),
            "fine");
  EXPECT_NE(forecast_json("{").status().text().find("not JSON"), std::string::npos);
  EXPECT_NE(forecast_json("{}").status().text().find("has no \"model\""), std::string::npos);
}

TEST(Step, ExpertsNeedTheirNumberOfEachToken) {
  constexpr const char* kExperts =
      R"({"name": "moe", "units": [{"name": "root", "params": [["head.weight", [1000, 64]]]},
    {"name": "layers.0", "params": [["experts.up", [8, 256, 64]]]}]})";
  const Result<Model> refused = read_model(value_of(kExperts), 0, 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().text().find("give \"experts_per_token\""), std::string::npos);
  EXPECT_DOUBLE_EQ(model_of(kExperts, 2).forward_flops(1), 2 * 64000 + 2 * 2 * 256 * 64);
}

}  // namespace
}  // namespace fsccl::forecast
