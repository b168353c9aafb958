#include "forecast/step_config.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/json_file.h"
#include "codec/price.h"

namespace fsccl::forecast {
namespace {

constexpr int kMostRanks = 1 << 20;

struct Named {
  const char* name;
  fsccl_dtype_t dtype;
};
constexpr std::array kTypes{Named{"fp32", FSCCL_FLOAT32}, Named{"bf16", FSCCL_BFLOAT16},
                            Named{"fp16", FSCCL_FLOAT16}};

struct Optimizer {
  const char* name;
  double bytes;  // its states, in fp32, of an element
};
constexpr std::array kOptimizers{Optimizer{"adam", 8}, Optimizer{"momentum", 4},
                                 Optimizer{"sgd", 0}, Optimizer{"none", 0}};

// The delta codec sends a quarter of 16-bit elements, or less (docs/codecs.md).
constexpr double kDeltaBits = 4;

// Returns whether copies of `degree` shards each fill hosts, or fit into them side by side.
bool fits_hosts(int degree, int ranks, int per_host) {
  if (ranks % degree != 0) return false;
  return degree >= per_host ? degree % per_host == 0 : ranks <= per_host || per_host % degree == 0;
}

class ConfigReader : JsonReader {
 public:
  ConfigReader() : JsonReader("forecast") {}

  Status read(const Json& json, StepConfig* setup) {
    if (!sizes(json, setup) || !types(json, setup) || !manner(json, setup)) return problem();
    return success();
  }
  Status read_only(const Json& json, const char* place, StepConfig* setup) {
    if (!object(json, place, {"ranks",         "batch",      "sequence",  "accumulate",
                              "shard_over",    "shard_type", "wire",      "reduce",
                              "gradient_type", "compute",    "optimizer", "optimizer_bytes",
                              "layout",        "keep_bytes", "prefetch",  "by_parameter",
                              "checkpoint",    "loss",       "codec",     "codec_ratio",
                              "codec_gb_per_s"}))
      return problem();
    const std::string compute = setup->compute;
    FSCCL_TRY(read(json, setup));
    if (setup->compute == compute) return success();
    wrong(
        "{}.compute is \"{}\", but the forecast computes in \"{}\": the part of the peak that "
        "one type reaches says nothing of another one, so measure a step in \"{}\"",
        place, setup->compute, compute, compute);
    return problem();
  }

 private:
  static constexpr const char* kPlace = "the configuration";

  bool whole(const Json& json, const char* key, int least, int most, int* value) {
    if (!json.contains(key)) return true;
    if (!json[key].is_whole(least, most))
      return wrong("{} must be a whole number from {} to {}, not {}", key, least, most,
                   json[key].dump());
    *value = json[key].get<int>();
    return true;
  }
  bool type(const Json& json, const char* key, fsccl_dtype_t* dtype) {
    std::string name;
    if (!text(json, key, kPlace, false, &name)) return false;
    if (name.empty()) return true;
    const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                     [&](const Named& known) { return name == known.name; });
    if (found == kTypes.end()) return wrong("{} is \"{}\": give fp32, bf16 or fp16", key, name);
    *dtype = found->dtype;
    return true;
  }
  bool flag(const Json& json, const char* key, bool* value) {
    if (!json.contains(key)) return true;
    if (!json[key].is_boolean()) return wrong("{} must be true or false", key);
    *value = json[key].get<bool>();
    return true;
  }
  bool bytes(const Json& json, const char* key, uint64_t* value) {
    double given = static_cast<double>(*value);
    if (!number(json, key, kPlace, 1e18, &given)) return false;
    *value = static_cast<uint64_t>(given);
    return true;
  }

  bool sizes(const Json& json, StepConfig* setup) {
    return whole(json, "ranks", 1, kMostRanks, &setup->ranks) &&
           whole(json, "batch", 1, kMostBatch, &setup->batch) &&
           whole(json, "sequence", 1, 1 << 27, &setup->sequence) &&
           whole(json, "accumulate", 1, kMostAccumulate, &setup->accumulate) &&
           whole(json, "prefetch", 0, kMostPrefetch, &setup->prefetch) &&
           bytes(json, "memory_limit_bytes", &setup->memory_limit);
  }
  bool types(const Json& json, StepConfig* setup) {
    std::string optimizer;
    if (!type(json, "shard_type", &setup->shard) || !type(json, "wire", &setup->wire) ||
        !type(json, "reduce", &setup->reduce) ||
        !type(json, "gradient_type", &setup->sharded_grad) ||
        !text(json, "compute", kPlace, false, &setup->compute) ||
        !text(json, "optimizer", kPlace, false, &optimizer))
      return false;
    for (const Optimizer& known : kOptimizers)
      if (optimizer == known.name) {
        setup->optimizer = std::exchange(optimizer, "");
        setup->optimizer_bytes = known.bytes;
      }
    if (!optimizer.empty())
      return wrong("optimizer is \"{}\": give adam, momentum, sgd or none", optimizer);
    if (!number(json, "optimizer_bytes", kPlace, 1024, &setup->optimizer_bytes)) return false;
    return setup->optimizer != "none" || setup->optimizer_bytes == 0 ||
           wrong("optimizer_bytes is {}, but optimizer is none: leave one of the two out",
                 setup->optimizer_bytes);
  }
  bool manner(const Json& json, StepConfig* setup) {
    std::string layout, checkpoint, loss;
    if (!text(json, "layout", kPlace, false, &layout) ||
        !text(json, "checkpoint", kPlace, false, &checkpoint) ||
        !text(json, "loss", kPlace, false, &loss) || !degree(json, setup) ||
        !bytes(json, "keep_bytes", &setup->keep_bytes) ||
        !flag(json, "by_parameter", &setup->by_parameter) || !codec(json, setup) ||
        !number(json, "codec_ratio", kPlace, 100, &setup->codec_ratio) ||
        !number(json, "codec_gb_per_s", kPlace, 1e6, &setup->codec_gb_per_s))
      return false;
    if (setup->codec_ratio < 1)
      return wrong("codec_ratio is {}: a codec shortens by 1 or more", setup->codec_ratio);
    if (setup->codec_ratio == 1 && json.contains("codec_gb_per_s") && setup->codec_gb_per_s > 0)
      return wrong("codec_gb_per_s without a codec: give codec_ratio, by which it shortens, too");
    if (setup->codec_ratio == 1) setup->codec_gb_per_s = 0;
    if (layout == "flat")
      setup->layout = FSCCL_LAYOUT_FLAT;
    else if (layout == "ragged")
      setup->layout = FSCCL_LAYOUT_RAGGED;
    else if (layout == "per_param")
      setup->layout = FSCCL_LAYOUT_PER_PARAM;
    else if (!layout.empty())
      return wrong("layout is \"{}\": give per_param, flat or ragged", layout);
    const auto known = std::find(kCheckpoints.begin(), kCheckpoints.end(), checkpoint);
    if (known != kCheckpoints.end())
      setup->checkpoint = static_cast<Checkpoint>(known - kCheckpoints.begin());
    else if (!checkpoint.empty())
      return wrong("checkpoint is \"{}\": give none, selective or full", checkpoint);
    if (loss == "fp32" || loss == "fused")
      setup->fused_loss = loss == "fused";
    else if (!loss.empty())
      return wrong("loss is \"{}\": give fp32 or fused", loss);
    if (setup->by_parameter && setup->keep_bytes > 0)
      return wrong(
          "by_parameter and keep_bytes together: units by parameter are not kept; leave one of the "
          "two out");
    return true;
  }
  // Takes the ratio of a codec that is named.
  bool codec(const Json& json, StepConfig* setup) {
    std::string name;
    if (!text(json, "codec", kPlace, false, &name)) return false;
    if (name.empty()) return true;
    if (json.contains("codec_ratio"))
      return wrong("codec and codec_ratio together: leave one of the two out");
    const auto* const blocks =
        std::find_if(std::begin(kBlockGathers), std::end(kBlockGathers),
                     [&](const BlockPrice& known) { return name == known.kind; });
    const bool delta = name == "delta";
    if (!delta && blocks == std::end(kBlockGathers))
      return wrong("codec is \"{}\": give delta, int8, fp8 or mxfp8, or codec_ratio", name);
    if (delta && setup->wire == FSCCL_FLOAT32)
      return wrong("codec is delta, which takes 16 bits: give wire bf16 or fp16, or another codec");
    setup->codec_ratio =
        8 * static_cast<double>(dtype_size(setup->wire)) / (delta ? kDeltaBits : blocks->bits);
    return true;
  }
  bool degree(const Json& json, StepConfig* setup) {
    if (!json.contains("shard_over")) return true;
    setup->copy_per_host =
        json["shard_over"].is_string() && json["shard_over"].get<std::string>() == "host";
    return setup->copy_per_host || whole(json, "shard_over", 0, kMostRanks, &setup->shard_over);
  }
};

// Returns the text "A or B", or "A" if the two are the same number.
std::string either(int a, int b) {
  return a == b ? fmt::format("{}", a) : fmt::format("{} or {}", a, b);
}

}  // namespace

Status read_step_config(const JsonValue& json, StepConfig* setup) {
  return ConfigReader().read(json, setup);
}

Status read_only_step_config(const JsonValue& json, const char* place, StepConfig* setup) {
  return ConfigReader().read_only(json, place, setup);
}

std::string misfit_of(const StepConfig& setup, int per_host) {
  const int shared = setup.shared_by();
  if (setup.ranks > per_host && setup.ranks % per_host != 0)
    return fmt::format("{} ranks on hosts of {}: a forecast is for full hosts; give {} or {} ranks",
                       setup.ranks, per_host, setup.ranks / per_host * per_host,
                       (setup.ranks / per_host + 1) * per_host);
  if (setup.by_parameter && shared < setup.ranks)
    return fmt::format(
        "by_parameter with shards over {} of {} ranks: units by parameter sum no copies of shards; "
        "leave by_parameter out, or shard over all ranks",
        shared, setup.ranks);
  if (fits_hosts(shared, setup.ranks, per_host)) return {};
  int below = std::min(shared, setup.ranks), above = below;  // 1 and all ranks fit
  while (!fits_hosts(below, setup.ranks, per_host)) below--;
  while (!fits_hosts(above, setup.ranks, per_host)) above++;
  return fmt::format(
      "shards over {} of {} ranks on hosts of {}: the degree must divide the ranks, and divide a "
      "host or be full hosts; give {}, or leave it out for all",
      shared, setup.ranks, per_host, either(below, above));
}

}  // namespace fsccl::forecast
