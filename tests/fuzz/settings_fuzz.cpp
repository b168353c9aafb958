// Fuzzes texts from the environment and from files of settings: configuration, rules of plans,
// kernels, and a launcher's lists of hosts. The first byte chooses the kind.
#include "base/config_file.h"
#include "base/config_store.h"
#include "base/config_value.h"
#include "bootstrap/hostlist.h"
#include "fuzz.h"
#include "kernels/start.h"
#include "select/rules.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace fsccl;
  if (bytes == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  switch (data[0] % 6) {
    case 5: {
      bool automatic = false;
      KernelChoice choice;
      (void)parse_kernels(text, &choice, &automatic).ok();
      for (size_t pass = 0; pass < kPasses; pass++) FUZZ_REQUIRE(usable(Pass(pass), choice[pass]));
      break;
    }
    case 0:
      (void)parse_config_file("fuzzed", text).ok();
      break;
    case 1: {
      const size_t comma = text.find('=');
      const std::string name = text.substr(0, comma),
                        value = comma == std::string::npos ? "" : text.substr(comma + 1);
      for (const ConfigType type :
           {ConfigType::kInteger, ConfigType::kBytes, ConfigType::kBool, ConfigType::kString,
            ConfigType::kPath, ConfigType::kEnum, ConfigType::kList}) {
        const ConfigSpec spec{"FSCCL_FUZZED", type, "", -5, 1 << 20, "kOne, kOtherOne", ""};
        const Result<ConfigValue> parsed = parse_config_value(spec, value);
        const bool number = type == ConfigType::kInteger || type == ConfigType::kBytes;
        if (parsed.ok() && number)
          FUZZ_REQUIRE(parsed.value().number >= -5 && parsed.value().number <= (1 << 20));
        if (parsed.ok() && type == ConfigType::kEnum)
          FUZZ_REQUIRE(parsed.value().number >= 0 && parsed.value().number < 2);
      }
      (void)quote(name);
      break;
    }
    case 2:
      (void)parse_rules(text, "fuzzed").ok();
      break;
    case 3: {
      const Result<std::vector<std::string>> hosts = expand_hosts(text);
      if (hosts.ok()) FUZZ_REQUIRE(hosts.value().size() <= (1u << 20));
      break;
    }
    default:
      (void)count_of_node(text, 3).ok();
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  using namespace fsccl;
  std::vector<std::string> seeds;
  const auto add = [&](uint8_t kind, std::string_view text) {
    seeds.push_back(seed_of(kind, text));
  };
  add(0, "# a comment\nFSCCL_TIMEOUT_MS=1000\n FSCCL_LOG_LEVEL = debug \n");
  for (const char* text : {"x=17", "x=64K", "x=true", "x=some text", "x=/a/path", "x=other-one",
                           "x=one,other-one", "x=-3", "x=1.5G"})
    add(1, text);
  add(2, "all_gather@2x4:64K-1M=slots/32K,broadcast=inline");
  add(2, "all_reduce:0-4K=direct");
  add(3, "node[01-03,7],other,rack[1-2]n[0-1]");
  add(4, "2(x3),4,1(x10)");
  add(5, "copy=memcpy,reduce_past=" + variant_name(usable_variants(Pass::reduce_past).back()));
  return seeds;
}
