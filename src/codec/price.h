// What the delta codec would make of a gather between hosts, before anything was measured: for
// fsccl_explain. The rates are those of one core of a server of 2024 (perf/micro/codec_bench.cpp),
// the bits a word those of pre-training at its highest rate (docs/codecs.md); later in a schedule
// there are fewer.
#pragma once
#include <algorithm>
#include <cstdint>

namespace fsccl {

struct CodecPrice {
  double plain_ns = 0, coded_ns = 0;
  uint64_t plain_bytes = 0, coded_bytes = 0;  // that a host receives of the others
  uint64_t copy_bytes = 0;                    // on each host
  bool nibbles = false;                       // the cheaper form
  bool declines() const { return coded_ns >= plain_ns; }
};

// Of `bytes` bytes of 16-bit words that lie evenly on `hosts` hosts. `byte_ns`, `exchange_ns`: of
// the link.
inline CodecPrice price_delta(uint64_t bytes, int hosts, double byte_ns, double exchange_ns) {
  struct Form {
    double bits, encode_ns, decode_ns;  // a word
  };
  constexpr Form kNibbles{4.3, 0.30, 0.27}, kCoded{2.6, 1.05, 1.10};
  const double words = static_cast<double>(bytes) / 2, share = 1.0 / hosts, others = 1 - share;
  CodecPrice made;
  made.copy_bytes = bytes;
  made.plain_bytes = static_cast<uint64_t>(static_cast<double>(bytes) * others);
  made.plain_ns = byte_ns * static_cast<double>(bytes) * others;
  for (const Form& form : {kCoded, kNibbles}) {
    const double coded = words * others * form.bits / 8;
    const double ns = words * (share * form.encode_ns + others * form.decode_ns) + byte_ns * coded +
                      2 * exchange_ns;
    if (made.coded_bytes && ns >= made.coded_ns) continue;
    made.coded_ns = ns;
    made.coded_bytes = static_cast<uint64_t>(coded);
    made.nibbles = form.bits == kNibbles.bits;
  }
  return made;
}

}  // namespace fsccl
