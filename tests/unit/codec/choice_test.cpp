// Tests when a codec is not used, for how long, and which form is taken. Ranks that get the same
// times decide alike.
#include "codec/choice.h"

#include <gtest/gtest.h>

#include "codec/price.h"

namespace fsccl {
namespace {

int gathers_out(CodecChoice& choice) {
  int out = 0;
  while (choice.stays_out()) out++;
  return out;
}

TEST(CodecChoice, StaysInWhileItWins) {
  CodecChoice choice;
  for (int i = 0; i < 1000; i++) {
    EXPECT_FALSE(choice.stays_out());
    choice.judge({100, 60}, true);
  }
}

TEST(CodecChoice, StaysOutLongerEachTimeThatItLoses) {
  CodecChoice choice;
  for (int i = 0; i < 8; i++) {
    EXPECT_FALSE(choice.stays_out());
    choice.judge({100, 120}, true);
  }
  EXPECT_EQ(gathers_out(choice), 32);
  for (const int next : {64, 128, 256, 512, 1024, 2048, 2048}) {
    for (int i = 0; i < 4; i++) {
      EXPECT_FALSE(choice.stays_out());
      choice.judge({100, 120}, true);
    }
    EXPECT_EQ(gathers_out(choice), next);
  }
  for (int i = 0; i < 20; i++) choice.judge({100, 10}, true);
  choice.judge({100, 120}, true);
  EXPECT_FALSE(choice.stays_out());
}

// A codec loses at most the time of two to three plain gathers before it stays out.
TEST(CodecChoice, StaysOutSoonerTheMoreItLoses) {
  for (const double coded : {150.0, 200.0, 400.0, 2000.0}) {
    CodecChoice choice;
    int lost = 0;
    while (!choice.out()) {
      choice.judge({100, coded}, true);
      lost++;
    }
    EXPECT_EQ(lost, coded > 300 ? 1 : coded > 199 ? 3 : 5) << coded;
  }
  // The codec stays in use if the time that forward loses is less than the time that backward wins.
  CodecChoice choice;
  for (int i = 0; i < 100; i++) {
    choice.judge({100, i % 2 ? 5.0 : 190.0}, true);
    EXPECT_FALSE(choice.out()) << i;
  }
}

// While the codec stays out, its times tell why. The next trial begins with times of its own.
TEST(CodecChoice, KeepsTheTimesForWhichItStaysOut) {
  CodecChoice choice;
  while (!choice.out()) choice.judge({100, 150}, true);
  EXPECT_EQ(choice.recent().plain_ns, 100);
  EXPECT_EQ(choice.recent().coded_ns, 150);
  gathers_out(choice);
  choice.judge({100, 60}, true);
  EXPECT_EQ(choice.recent().coded_ns, 60);
}

TEST(CodecChoice, GathersOfBackwardCountToo) {
  CodecChoice wins, loses;
  for (int i = 0; i < 100; i++) {
    const bool forward = i % 2 == 0;
    wins.judge({100, forward ? 150.0 : 20.0}, true);
    loses.judge({100, forward ? 250.0 : 20.0}, true);
    EXPECT_FALSE(wins.out());
  }
  EXPECT_TRUE(loses.out());
}

TEST(CodecChoice, NeverStaysOutWhereItMayNot) {
  CodecChoice choice;
  for (int i = 0; i < 50; i++) choice.judge({100, 1000}, false);
  EXPECT_FALSE(choice.out());
  EXPECT_GT(choice.recent().coded_ns, choice.recent().plain_ns);
}

TEST(CodecChoice, TakesTheFormThatTheLinkMakesCheaper) {
  for (const bool slow : {true, false}) {
    CodecChoice choice;
    int coded = 0;
    for (int i = 0; i < 130; i++) {
      const DeltaForm form = choice.form(slow ? 8 : 0.1, 1);
      coded += form == DeltaForm::coded;
      choice.took(form, form == DeltaForm::coded ? 1.1e6 : 0.3e6, 1'000'000,
                  form == DeltaForm::coded ? 330'000 : 540'000);
    }
    EXPECT_EQ(coded > 65, slow) << coded;
    EXPECT_GT(coded, 0);
    EXPECT_LT(coded, 130);
  }
}

TEST(CodecChoice, TheRateOfALinkComesFromLargeTransfers) {
  LinkCosts link;
  link.byte_ns = 1;
  link.measured(1e9, 1000);  // a small transfer, whose time is mostly latency, does not count
  EXPECT_EQ(link.byte_ns, 1);
  for (int i = 0; i < 40; i++) link.measured(8e6, 1'000'000);
  EXPECT_NEAR(link.byte_ns, 8, 0.01);
}

// If bytes arrived while ranks coded, their time is an upper bound of the link's time. So the rate
// gets worse slowly: a rank that loses its core once does not make the link look slow.
TEST(CodecChoice, TheRateOfALinkThatCodingHidesRisesSlowly) {
  LinkCosts link;
  link.byte_ns = 1;
  link.overlapped(3e6, 1'000'000, false);
  EXPECT_EQ(link.byte_ns, 1);
  link.overlapped(100e6, 1'000'000, true);
  EXPECT_GT(link.byte_ns, 1);
  EXPECT_LT(link.byte_ns, 1.1);
  for (int i = 0; i < 20; i++) link.overlapped(0.5e6, 1'000'000, false);
  EXPECT_NEAR(link.byte_ns, 0.5, 0.01);
  for (int i = 0; i < 80; i++) link.overlapped(8e6, 1'000'000, true);
  EXPECT_NEAR(link.byte_ns, 8, 0.1);
}

// Coding goes on while bytes are on their way, so it costs little if the link is slower.
TEST(CodecChoice, TheLongerOfCodingAndMovingHidesMostOfTheOther) {
  EXPECT_EQ(overlapped_ns(8, 80), 81);
  EXPECT_EQ(overlapped_ns(80, 8), 81);
  EXPECT_EQ(overlapped_ns(0, 80), 80);
}

// The rates are 1, 10 and 100 Gbit/s, between two hosts.
TEST(CodecPrice, WinsAtOneAndTenAndDeclinesAtAHundredGigabits) {
  for (const double gigabits : {1.0, 10.0, 100.0}) {
    const CodecPrice price = price_delta(200'000'000, {2, 1}, 8 / gigabits, 50'000);
    EXPECT_EQ(price.declines(), gigabits > 50) << gigabits;
    EXPECT_EQ(price.nibbles, gigabits > 5) << gigabits;
    EXPECT_EQ(price.plain_bytes, 100'000'000u);
    EXPECT_EQ(price.copy_bytes, 200'000'000u);
    EXPECT_LT(price.coded_bytes, price.plain_bytes / 3);
  }
}

// The ranks of a host share its link and its coding, each on a core of its own.
TEST(CodecPrice, WinsAtAHundredGigabitsWithSixteenRanksAHost) {
  const CodecPrice one = price_delta(200'000'000, {2, 1}, 0.08, 50'000),
                   many = price_delta(200'000'000, {2, 16}, 0.08, 50'000);
  EXPECT_TRUE(one.declines());
  EXPECT_FALSE(many.declines());
  EXPECT_EQ(many.plain_ns, one.plain_ns);
  EXPECT_EQ(many.plain_bytes, one.plain_bytes);
  const CodecPrice block = price_blocks(kBlockGathers[0], 1e8, 2, {2, 1}, 0.08, false),
                   shared = price_blocks(kBlockGathers[0], 1e8, 2, {2, 16}, 0.08, false);
  EXPECT_TRUE(block.declines());
  EXPECT_FALSE(shared.declines());
}

}  // namespace
}  // namespace fsccl
