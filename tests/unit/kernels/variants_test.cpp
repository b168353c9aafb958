// Tests the variants of the passes. All give the same bits, at odd sizes and alignments. Only a
// variant that is clearly faster wins a race. The kept result of a race is read again, and a kept
// result with an error is refused.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/build.h"
#include "base/clock.h"
#include "base/processor.h"
#include "kernels/race_file.h"
#include "kernels/start.h"
#include "reference.h"

namespace fsccl {
namespace {

using reference::Buffer;
using testing::HasSubstr;

constexpr uint64_t kVariantsSeed = 38;

// Returns counts around a line, a page, a block of pages side by side and a block of the norm.
std::vector<size_t> odd_counts() {
  std::vector<size_t> counts{0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 129, 511, 1000};
  for (const size_t around : {1024, 2048, 4096, 8192, 16384, 20480})
    counts.insert(counts.end(), {around - 1, around, around + 1, around + 37});
  return counts;
}

// Returns the variants of the pass `hot` and those of its `_past` form. Each of them can carry out
// both.
std::vector<Chosen> both_states(Pass hot) {
  std::vector<Chosen> all = usable_variants(hot);
  for (const Chosen one : usable_variants(Pass(static_cast<int>(hot) + 1))) all.push_back(one);
  return all;
}

void fill_floats(Buffer& buffer, size_t from_bytes, std::mt19937_64& random) {
  // Mostly ordinary values; some are subnormal, infinite or NaN.
  for (size_t i = 0; i + from_bytes <= buffer.size(); i += from_bytes)
    for (size_t k = 0; k < from_bytes; k++)
      buffer.data()[i + k] = static_cast<uint8_t>(random() % 64 == 0    ? random()
                                                  : k + 1 == from_bytes ? 0x3f
                                                                        : random());
}

TEST(Variants, CopiesGiveTheSameBytes) {
  std::mt19937_64 random(kVariantsSeed);
  for (const size_t bytes : odd_counts()) {
    for (const size_t shift : {0, 1, 16, 33, 63}) {
      Buffer in(bytes, shift);
      std::generate_n(in.data(), bytes, [&] { return static_cast<uint8_t>(random()); });
      for (const Chosen variant : both_states(Pass::copy)) {
        Buffer out(bytes, random() % 128);
        copy_as(variant, out.data(), in.data(), bytes);
        ASSERT_EQ(out.bytes(), in.bytes()) << variant_name(variant) << ", " << bytes << " bytes";
        ASSERT_TRUE(out.guards_intact()) << variant_name(variant) << ", " << bytes << " bytes";
      }
    }
  }
}

TEST(Variants, CastsGiveTheSameBits) {
  constexpr fsccl_dtype_t kTypes[] = {FSCCL_FLOAT16, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64};
  std::mt19937_64 random(kVariantsSeed);
  for (const fsccl_dtype_t from : kTypes) {
    for (const fsccl_dtype_t to : kTypes) {
      if (to == from) continue;
      for (const size_t count : odd_counts()) {
        const size_t out_shift =
            random() % 2 == 0 ? 0 : random() % 9 * dtype_size(to) + random() % 2;
        Buffer in(count * dtype_size(from), random() % 128),
            first(count * dtype_size(to), out_shift);
        fill_floats(in, dtype_size(from), random);
        const std::vector<Chosen> all = both_states(Pass::cast);
        ASSERT_TRUE(cast_as(all.front(), first.data(), to, in.data(), from, count));
        for (const Chosen variant : all) {
          Buffer out(count * dtype_size(to), out_shift);
          ASSERT_TRUE(cast_as(variant, out.data(), to, in.data(), from, count));
          ASSERT_EQ(out.bytes(), first.bytes())
              << variant_name(variant) << ", " << count << " of type " << from << " to " << to;
          ASSERT_TRUE(out.guards_intact()) << variant_name(variant) << ", " << count;
        }
      }
    }
  }
}

TEST(Variants, ReducesGiveTheSameBitsAndNorms) {
  struct Types {
    fsccl_dtype_t from, to;
  };
  constexpr Types kTypes[] = {{FSCCL_FLOAT32, FSCCL_FLOAT32},  {FSCCL_BFLOAT16, FSCCL_FLOAT32},
                              {FSCCL_FLOAT16, FSCCL_FLOAT32},  {FSCCL_BFLOAT16, FSCCL_BFLOAT16},
                              {FSCCL_FLOAT32, FSCCL_BFLOAT16}, {FSCCL_FLOAT64, FSCCL_FLOAT64}};
  std::mt19937_64 random(kVariantsSeed);
  for (const auto [from, to] : kTypes) {
    for (const size_t count : odd_counts()) {
      const size_t shift = random() % 2 == 0 ? 0 : random() % 5 * dtype_size(to);
      std::vector<Buffer> in;
      std::vector<const void*> sources;
      for (int s = 0; s < 3; s++) {
        in.emplace_back(count * dtype_size(from), random() % 64);
        fill_floats(in.back(), dtype_size(from), random);
      }
      for (Buffer& source : in) sources.push_back(source.data());
      for (const bool with_norm : {false, true}) {
        std::vector<uint8_t> bits;
        Norm of_first;
        const std::vector<Chosen> all = both_states(with_norm ? Pass::reduce_norm : Pass::reduce);
        for (const Chosen variant : all) {
          Buffer out(count * dtype_size(to), shift);
          Norm norm;
          Reduce args{.sources = sources.data(), .n = 3, .from = from};
          args.dst = out.data(), args.to = to, args.count = count;
          args.scale = 0.5, args.divisor = 3;
          args.norm = with_norm ? &norm : nullptr;
          ASSERT_TRUE(reduce_as(variant, args));
          if (variant == all.front() && bits.empty()) bits = out.bytes(), of_first = norm;
          ASSERT_EQ(out.bytes(), bits) << variant_name(variant) << ", " << count << " of " << from;
          ASSERT_EQ(std::memcmp(&norm.sum, &of_first.sum, sizeof norm.sum), 0)
              << variant_name(variant) << ", " << count << " of type " << from;
          ASSERT_EQ(norm.finite, of_first.finite);
          ASSERT_TRUE(out.guards_intact()) << variant_name(variant) << ", " << count;
        }
      }
    }
  }
}

TEST(Variants, NamesComeBackAndStrangeOnesDoNot) {
  for (size_t pass = 0; pass < kPasses; pass++) {
    const std::vector<Chosen> all = usable_variants(Pass(pass));
    EXPECT_EQ(all.front(), default_kernels()[pass]);
    for (const Chosen one : all) {
      EXPECT_EQ(find_variant(Pass(pass), variant_name(one)), one);
      EXPECT_TRUE(usable(Pass(pass), one)) << variant_name(one);
    }
    for (const char* const name : {"", "nt", "nt@abacus", "nt*4", "@avx3", "memcpy@avx3"})
      EXPECT_FALSE(find_variant(Pass(pass), name)) << name;
  }
  EXPECT_FALSE(find_variant(Pass::cast, "memcpy"));
  EXPECT_FALSE(usable(Pass::copy, {0, 255}));
  EXPECT_FALSE(usable(Pass::copy, {255, 0}));
}

// Numbers that another rank sends are checked as well.
TEST(Variants, WhatIsNotUsableBecomesTheDefault) {
  KernelChoice strange;
  strange.fill({200, 200});
  use_kernels(strange);
  EXPECT_EQ(kernels_in_use(), default_kernels());
  KernelChoice other = default_kernels();
  other[static_cast<size_t>(Pass::copy_past)] = usable_variants(Pass::copy_past).back();
  use_kernels(other);
  EXPECT_EQ(kernels_in_use(), other);
  use_kernels(default_kernels());
}

std::vector<Heat> heats(const std::vector<std::array<double, kRepeats>>& times) {
  std::vector<Heat> made;
  for (const auto& one : times) made.push_back({{}, one});
  return made;
}

TEST(Race, OnlyAClearWinnerInEveryRepeatWins) {
  EXPECT_EQ(winner_of(heats({{10, 10, 10}})), 0u);
  EXPECT_EQ(winner_of(heats({{10, 10, 10}, {9.8, 9.8, 9.8}})), 0u);  // 2 %
  EXPECT_EQ(winner_of(heats({{10, 10, 10}, {5, 5, 9.8}})), 0u);      // two of three
  EXPECT_EQ(winner_of(heats({{10, 10, 10}, {9.6, 9.6, 9.6}})), 1u);
  EXPECT_EQ(winner_of(heats({{10, 10, 10}, {9.6, 9.6, 9.6}, {9, 9, 9}, {1, 1, 10}})), 2u);
  EXPECT_EQ(winner_of(heats({{0, 0, 0}, {0, 0, 0}})), 0u);  // a clock that stands still
}

TEST(Race, IsRunInTurnsAndEndsWithItsTime) {
  const std::vector<Chosen> all = usable_variants(Pass::copy_past);
  ASSERT_GE(all.size(), 3u);
  std::vector<Chosen> asked;
  const auto sample = [&](Pass, Chosen chosen) {
    asked.push_back(chosen);
    return chosen == all[2] ? 5.0 : 10.0;
  };
  const auto made = race(Pass::copy_past, std::span(all).first(3), 2, sample, [] { return false; });
  ASSERT_TRUE(made);
  EXPECT_EQ(made->winner, 2u);
  // The first runs warm up, and then three repeats of two rounds follow, each begun by another
  // variant.
  const std::vector<Chosen> begin{all[0], all[1], all[2], all[0], all[1],
                                  all[2], all[1], all[2], all[0]};
  ASSERT_EQ(asked.size(), 3u + 3 * kRepeats * 2);
  EXPECT_TRUE(std::equal(begin.begin(), begin.end(), asked.begin()));
  int left = 2;
  EXPECT_FALSE(race(Pass::copy_past, all, 2, sample, [&] { return left-- == 0; }));
}

TEST(Race, CoursesTimeEveryPass) {
  Course course(1u << 20, 256u << 10);
  ASSERT_TRUE(course.valid());
  for (size_t pass = 0; pass < kPasses; pass++)
    EXPECT_GT(course.sample(Pass(pass), default_kernels()[pass]), 0) << kPassNames[pass];
}

class RaceFile : public testing::Test {
 protected:
  RaceFile() {
    std::string name = testing::TempDir() + "fsccl_races_XXXXXX";
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/cache/fsccl/kernels.json";
    for (const Pass pass : {Pass::copy_past, Pass::reduce}) {
      Race made{pass, {}, 0};
      for (const Chosen one : usable_variants(pass)) made.heats.push_back({one, {10, 11, 12}});
      made.heats.back().ns_per_kib = {5, 5, 5};
      made.winner = winner_of(made.heats);
      record_.races.push_back(std::move(made));
    }
  }
  ~RaceFile() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& text) {
    std::filesystem::create_directories(folder_ + "/cache/fsccl");
    std::ofstream(path_) << text;
    ::chmod(path_.c_str(), 0600);
  }
  std::string refusal() {
    Result<RaceRecord> read = load_races(path_, record_.key);
    return read.ok() ? "" : read.take_status().text();
  }

  std::string folder_, path_;
  RaceRecord record_{{"a processor", "0x1", "0.1.0"}, "race", {}};
};

TEST_F(RaceFile, ComesBackAsItWasAndChoosesItsWinners) {
  ASSERT_TRUE(save_races(path_, record_).ok());
  struct stat facts{};
  ASSERT_EQ(::stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  Result<RaceRecord> read = load_races(path_, record_.key);
  ASSERT_TRUE(read.ok());
  const KernelChoice choice = choice_of(read.value().races);
  EXPECT_EQ(choice, choice_of(record_.races));
  EXPECT_EQ(choice[static_cast<size_t>(Pass::reduce)], usable_variants(Pass::reduce).back());
  EXPECT_EQ(choice[static_cast<size_t>(Pass::cast)],
            default_kernels()[static_cast<size_t>(Pass::cast)]);
  EXPECT_EQ(to_json(parse_races(to_json(read.value()), "again").value()), to_json(read.value()));
}

TEST_F(RaceFile, OfAnotherMachineOrLibraryIsNotUsed) {
  ASSERT_TRUE(save_races(path_, record_).ok());
  for (const RaceKey& other :
       {RaceKey{"another", "0x1", "0.1.0"}, RaceKey{"a processor", "0x2", "0.1.0"},
        RaceKey{"a processor", "0x1", "0.2.0"}}) {
    EXPECT_FALSE(load_races(path_, other).ok());
    EXPECT_NE(race_file_path(other), race_file_path(record_.key));
  }
}

TEST_F(RaceFile, WhateverIsInItIsRefusedOrHarmless) {
  EXPECT_NE(refusal(), "");  // no file
  const std::string good = to_json(record_);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("\0\xff", 2), good.substr(0, good.size() / 2),
        std::string(100'000, '['), std::string(100'000, ' ') + good, changed("reduce", "fold"),
        changed("[10.000,11.000,12.000]", "[10,11]"), changed("10.000", "-1"),
        changed("10.000", "1e999"), changed("10.000", "\"x\""), changed("race\"", "nobody\""),
        changed("plain@", "plain@@"), changed("\"fsccl_kernels\":1", "\"fsccl_kernels\":2"),
        changed("\"races\":{", "\"races\":[],\"more\":{")}) {
    write(text);
    EXPECT_NE(refusal(), "") << text.substr(0, 200);
  }
  write(good);
  EXPECT_EQ(refusal(), "");
}

TEST_F(RaceFile, IsOfItsUserAloneAndNoOtherKindOfFile) {
  write(to_json(record_));
  ::chmod(path_.c_str(), 0666);
  EXPECT_THAT(refusal(), HasSubstr("others than its user can write it; remove it, or chmod go-w"));
  // The library reads what it has written, whatever the mode of the file that it replaced.
  ASSERT_TRUE(save_races(path_, record_).ok());
  EXPECT_EQ(refusal(), "");
  std::filesystem::rename(path_, path_ + ".real");
  std::filesystem::create_symlink(path_ + ".real", path_);
  EXPECT_NE(refusal(), "");
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("no regular file"));  // does not wait for a writer
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_NE(refusal(), "");
  EXPECT_FALSE(save_races(path_, record_).ok());
}

// Sets a variable of the environment while it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = ::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class KernelStarts : public RaceFile {
 protected:
  const Variable cache_{"XDG_CACHE_HOME", folder_ + "/cache"};
};

constexpr int64_t kLongMs = 60'000;  // enough for all probes on any machine

TEST_F(KernelStarts, MeasureOnceAndThenTakeTheFile) {
  const KernelStart none = find_kernels("auto", 0);
  EXPECT_EQ(none.from, "default");
  EXPECT_TRUE(none.file.starts_with(folder_ + "/cache/fsccl/kernels-")) << none.file;
  EXPECT_FALSE(std::filesystem::exists(none.file));
  if (!Course::flushes()) GTEST_SKIP() << "this processor has no probes";
  const KernelStart first = find_kernels("auto", kLongMs);
  ASSERT_EQ(first.from, "probes");
  for (const int64_t probe_ms : {int64_t{0}, kLongMs}) {
    const KernelStart second = find_kernels("auto", probe_ms);
    EXPECT_EQ(second.from, "file");
    EXPECT_EQ(second.choice, first.choice);
  }
}

// A start whose time sufficed for a part keeps this part, and the next start measures the rest.
TEST_F(KernelStarts, GoOnWhereTheLastOneEnded) {
  if (!Course::flushes()) GTEST_SKIP() << "this processor has no probes";
  const KernelStart whole = find_kernels("auto", kLongMs);
  ASSERT_GT(whole.races.size(), 1u);
  Race first = whole.races.front();
  first.heats.front().ns_per_kib[0] += 12345;  // the second start must not race it again
  ASSERT_TRUE(save_races(whole.file, {race_key(), "probes", {first}}).ok());
  EXPECT_EQ(find_kernels("auto", 0).races.size(), 1u);
  const KernelStart second = find_kernels("auto", kLongMs);
  EXPECT_EQ(second.from, "probes");
  ASSERT_EQ(second.races.size(), whole.races.size());
  EXPECT_NEAR(second.races.front().heats.front().ns_per_kib[0], first.heats.front().ns_per_kib[0],
              1);
  EXPECT_EQ(find_kernels("auto", kLongMs).from, "file");
}

// No pass is raced in a millisecond on any machine that is known, so each start races one.
TEST_F(KernelStarts, KeepAPassHoweverShortTheTime) {
  if (!Course::flushes()) GTEST_SKIP() << "this processor has no probes";
  size_t kept = 0;
  for (;;) {
    const KernelStart start = find_kernels("auto", 1);
    if (start.from == "file") break;
    ASSERT_GT(start.races.size(), kept);
    kept = start.races.size();
  }
  EXPECT_EQ(kept, find_kernels("auto", kLongMs).races.size());
}

TEST_F(KernelStarts, NeedNoFolder) {
  for (const char* const place : {"", "relative", "/proc/nowhere"}) {
    const Variable cache("XDG_CACHE_HOME", place), home("HOME", place);
    const KernelStart start = find_kernels("auto", kProbeMs);
    for (size_t pass = 0; pass < kPasses; pass++)
      EXPECT_TRUE(usable(Pass(pass), start.choice[pass])) << place;
  }
}

TEST_F(KernelStarts, FollowTheSetting) {
  bool automatic = false;
  KernelChoice choice;
  EXPECT_EQ(find_kernels("default", kProbeMs).from, "default");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/cache"));
  const std::string plain = variant_name(usable_variants(Pass::reduce_past).back());
  const std::string words = "reduce_past=" + plain + ",copy=memcpy";
  ASSERT_TRUE(parse_kernels(words, &choice, &automatic).ok());
  EXPECT_FALSE(automatic);
  const KernelStart given = find_kernels(words, kProbeMs);
  EXPECT_EQ(given.from, "setting");
  EXPECT_EQ(given.choice[static_cast<size_t>(Pass::reduce_past)],
            usable_variants(Pass::reduce_past).back());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/cache"));
  for (const char* const wrong : {"fastest", "copy", "copy=", "copy=abacus", "fold=memcpy",
                                  "copy=memcpy,,", "cast=memcpy", "=", "copy=memcpy copy"})
    EXPECT_FALSE(parse_kernels(wrong, &choice, &automatic).ok()) << wrong;
}

TEST(Processor, IsKnownByWhatTheSystemSays) {
  constexpr const char* kInfo =
      "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
      "model name\t: Intel \"Xeon\"\\\nstepping\t: 8\nmicrocode\t: 0x2b0004d0\n";
  EXPECT_EQ(processor_field(kInfo, "model"), "143");
  EXPECT_EQ(processor_field(kInfo, "microcode"), "0x2b0004d0");
  EXPECT_EQ(processor_field(kInfo, "micro"), "");
  EXPECT_EQ(
      processor_model(kInfo),
      "vendor_id GenuineIntel, cpu family 6, model 143, model name Intel  Xeon  , stepping 8");
  EXPECT_EQ(processor_model(""), "unknown processor");
  EXPECT_NE(race_key().processor, "");
  // Builds that are optimized differently have different names, which are those of their races.
  EXPECT_EQ(race_key().library, library_build());
  EXPECT_NE(library_build().find("optimization "), std::string::npos) << library_build();
}

}  // namespace
}  // namespace fsccl
