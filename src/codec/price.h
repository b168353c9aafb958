// Estimates, before anything was measured, the time and bytes of a gather or a reduction between
// hosts with a codec; fsccl_explain shows the estimate. Each rank of a host codes an equal part, on
// a core of its own. The rates are those of one core of a server of 2024
// (perf/micro/codec_bench.cpp). The bits per word are those of pre-training at its highest learning
// rate (docs/codecs.md); later in a schedule words take fewer bits.
#pragma once
#include <algorithm>
#include <cstdint>

#include "codec/choice.h"

namespace fsccl {

struct CodecPrice {
  double plain_ns = 0, coded_ns = 0;
  uint64_t plain_bytes = 0, coded_bytes = 0;  // that a host receives of the others
  uint64_t copy_bytes = 0;                    // on each host
  bool nibbles = false;                       // the cheaper form
  bool declines() const { return coded_ns >= plain_ns; }
};

// The ranks among which the elements are spread evenly.
struct CodingRanks {
  int hosts = 1, per_host = 1;
};

// Prices a gather of `bytes` bytes of 16-bit words. `byte_ns` and `exchange_ns` are costs of the
// link.
inline CodecPrice price_delta(uint64_t bytes, CodingRanks ranks, double byte_ns,
                              double exchange_ns) {
  struct Form {
    double bits, encode_ns, decode_ns;  // a word
  };
  constexpr Form kNibbles{4.3, 0.30, 0.27}, kCoded{2.6, 1.05, 1.10};
  const double words = static_cast<double>(bytes) / 2, share = 1.0 / ranks.hosts,
               others = 1 - share;
  CodecPrice made;
  made.copy_bytes = bytes;
  made.plain_bytes = static_cast<uint64_t>(static_cast<double>(bytes) * others);
  made.plain_ns = byte_ns * static_cast<double>(bytes) * others;
  for (const Form& form : {kCoded, kNibbles}) {
    const double coded = words * others * form.bits / 8;
    const double coding_ns =
        words * (share * form.encode_ns + others * form.decode_ns) / ranks.per_host;
    const double ns = overlapped_ns(coding_ns, byte_ns * coded) + exchange_ns;
    if (made.coded_bytes && ns >= made.coded_ns) continue;
    made.coded_ns = ns;
    made.coded_bytes = static_cast<uint64_t>(coded);
    made.nibbles = form.bits == kNibbles.bits;
  }
  return made;
}

struct BlockPrice {
  const char* kind = "";
  double bits = 0;                      // a word
  double encode_ns = 0, decode_ns = 0;  // a word
  double bound = 0;                     // largest error of a block
};
inline constexpr BlockPrice kBlockGathers[] = {{"int8", 8.25, 0.22, 0.12, 1 / 254.0},
                                               {"fp8", 8.25, 0.25, 0.16, 1 / 28.0},
                                               {"mxfp8", 8.25, 0.34, 0.21, 1 / 16.0}};
inline constexpr BlockPrice kBlockSums[] = {{"bf16", 16, 0.44, 0.20, 1 / 256.0},
                                            {"int8", 8.25, 0.40, 0.17, 1 / 254.0},
                                            {"int4", 4.25, 0.73, 0.26, 1 / 14.0}};

// Prices an operation on `words` words of `word_bytes` bytes each. In a gather a host encodes its
// own part and decodes all parts. In a sum a host encodes what other hosts receive and adds up what
// it receives from them.
inline CodecPrice price_blocks(const BlockPrice& one, double words, double word_bytes,
                               CodingRanks ranks, double byte_ns, bool sums) {
  const double share = 1.0 / ranks.hosts, others = 1 - share;
  const double encoded = sums ? others : share, decoded = sums ? others : 1;
  CodecPrice made;
  made.plain_bytes = static_cast<uint64_t>(words * word_bytes * others);
  made.coded_bytes = static_cast<uint64_t>(words * one.bits / 8 * others);
  made.plain_ns = byte_ns * words * word_bytes * others;
  made.coded_ns = byte_ns * words * one.bits / 8 * others +
                  words * (encoded * one.encode_ns + decoded * one.decode_ns) / ranks.per_host;
  return made;
}

}  // namespace fsccl
