// The harness of the measurements of peers: a clock, a barrier between processes that does not use
// the peer itself, sampling of each cell, a check of results, and output as JSON lines. Each native
// peer is one backend class on top of it.
#pragma once
#pragma GCC system_header  // this file has its own style, so it must cause no warnings
#include <fcntl.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

namespace fsb {
enum DT { U8 = 0, F32 = 1, BF16 = 2 };
static const char* dt_name[] = {"u8", "f32", "bf16"};
static const size_t dt_size[] = {1, 4, 2};

inline double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

struct alignas(64) Ctl {
  alignas(64) std::atomic<uint32_t> count;
  alignas(64) std::atomic<uint32_t> sense;
  alignas(64) std::atomic<uint32_t> bcount;  // these two are the blocking barrier's
  alignas(64) std::atomic<uint32_t> bsense;
  alignas(64) std::atomic<int64_t> word;  // rank 0's decision, or any small broadcast value
  alignas(64) double slot[64];
  alignas(64) char blob[8192];  // address exchange (kvs addresses and the like)
  alignas(64) int32_t pid[64];
};

inline Ctl* g_ctl = nullptr;
inline int g_rank = 0, g_size = 1;

inline void ctl_open(int rank, int size) {
  // a launcher's setsid() starts a new scheduler autogroup, so every rank sets its own
  if (const char* pr = getenv("FSB_PRIO")) {
    if (FILE* f = fopen("/proc/self/autogroup", "w")) {
      fprintf(f, "%s", pr);
      fclose(f);
    }
  }
  const char* path = getenv("FSB_SHM");
  if (!path) {
    fprintf(stderr, "FSB_SHM not set\n");
    exit(2);
  }
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, 65536)) {
    perror("FSB_SHM");
    exit(2);
  }
  g_ctl = (Ctl*)mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  g_rank = rank;
  g_size = size;
  g_ctl->pid[rank] = getpid();
}

// Peers that move data in a background thread (gloo, oneCCL workers) need the core while a rank
// waits here, so with FSB_BLOCK=1 the barrier sleeps in a futex first and spins only for the short
// release that follows.
inline bool g_block = getenv("FSB_BLOCK") && strtol(getenv("FSB_BLOCK"), nullptr, 10) != 0;
inline void block_bar() {
  uint32_t s = g_ctl->bsense.load(std::memory_order_relaxed);
  if (g_ctl->bcount.fetch_add(1, std::memory_order_acq_rel) + 1 == (uint32_t)g_size) {
    g_ctl->bcount.store(0, std::memory_order_relaxed);
    g_ctl->bsense.store(s + 1, std::memory_order_release);
    syscall(SYS_futex, &g_ctl->bsense, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
  } else
    while (g_ctl->bsense.load(std::memory_order_acquire) == s)
      syscall(SYS_futex, &g_ctl->bsense, FUTEX_WAIT, s, nullptr, nullptr, 0);
}
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#endif
}
inline void spin_bar() {
  uint32_t s = g_ctl->sense.load(std::memory_order_relaxed);
  if (g_ctl->count.fetch_add(1, std::memory_order_acq_rel) + 1 == (uint32_t)g_size) {
    g_ctl->count.store(0, std::memory_order_relaxed);
    g_ctl->sense.store(s + 1, std::memory_order_release);
  } else {
    unsigned n = 0;
    while (g_ctl->sense.load(std::memory_order_acquire) == s) {
      if (++n < 4000u && g_size <= 2)
        relax();
      else
        sched_yield();
    }
  }
}
inline void bar() {
  if (g_block) block_bar();
  spin_bar();
}
inline int64_t bcast_word(int64_t v) {
  bar();
  if (g_rank == 0) g_ctl->word.store(v);
  bar();
  return g_ctl->word.load();
}
inline double max_over_ranks(double v) {
  g_ctl->slot[g_rank] = v;
  bar();
  double m = g_ctl->slot[0];
  for (int i = 1; i < g_size; i++) m = std::max(m, g_ctl->slot[i]);
  bar();
  return m;
}
inline double sum_over_ranks(double v) {
  g_ctl->slot[g_rank] = v;
  bar();
  double m = 0;
  for (int i = 0; i < g_size; i++) m += g_ctl->slot[i];
  bar();
  return m;
}

// ---- options
// -------------------------------------------------------------------------------------------------
struct Opt {
  std::string peer = "unnamed", out;
  std::vector<size_t> sizes;
  std::vector<std::string> colls;
  double budget_us = 100e3;  // time spent sampling one cell
  int max_samples = 200, min_samples = 3, round = 0, steps = 2;
  int layers = 16, vocab = 128256;
};
inline std::vector<std::string> split(const std::string& s) {
  std::vector<std::string> v;
  size_t b = 0;
  while (b <= s.size()) {
    size_t e = s.find(',', b);
    if (e == std::string::npos) e = s.size();
    if (e > b) v.push_back(s.substr(b, e - b));
    b = e + 1;
  }
  return v;
}
inline Opt parse_env() {
  Opt o;
  auto g = [](const char* k) {
    const char* v = getenv(k);
    return v ? std::string(v) : std::string();
  };
  o.peer = g("FSB_PEER");
  o.out = g("FSB_OUT");
  o.colls = split(g("FSB_COLLS"));
  for (auto& s : split(g("FSB_SIZES"))) o.sizes.push_back(strtoull(s.c_str(), 0, 0));
  if (!g("FSB_BUDGET_MS").empty()) o.budget_us = strtod(g("FSB_BUDGET_MS").c_str(), nullptr) * 1e3;
  if (!g("FSB_ROUND").empty()) o.round = (int)strtol(g("FSB_ROUND").c_str(), nullptr, 10);
  if (!g("FSB_LAYERS").empty()) o.layers = (int)strtol(g("FSB_LAYERS").c_str(), nullptr, 10);
  if (!g("FSB_VOCAB").empty()) o.vocab = (int)strtol(g("FSB_VOCAB").c_str(), nullptr, 10);
  if (!g("FSB_STEPS").empty()) o.steps = (int)strtol(g("FSB_STEPS").c_str(), nullptr, 10);
  return o;
}

inline void emit(const Opt& o, const std::string& coll, const char* dt, const char* memory,
                 size_t bytes, int k, bool ok, const std::vector<double>& us,
                 const std::string& extra = "") {
  if (g_rank) return;
  FILE* f = o.out.empty() ? stdout : fopen(o.out.c_str(), "a");
  fprintf(f,
          "{\"peer\":\"%s\",\"coll\":\"%s\",\"dtype\":\"%s\",\"memory\":\"%s\",\"nranks\":%d,"
          "\"bytes\":%zu,\"k\":%d,\"round\":%d,\"ok\":%s%s,\"us\":[",
          o.peer.c_str(), coll.c_str(), dt, memory, g_size, bytes, k, o.round,
          ok ? "true" : "false", extra.c_str());
  for (size_t i = 0; i < us.size(); i++) fprintf(f, i ? ",%.3f" : "%.3f", us[i]);
  fprintf(f, "]}\n");
  if (f != stdout)
    fclose(f);
  else
    fflush(f);
}

// One cell of the table. A sample is k back-to-back calls after a barrier of the harness; its time
// is that of the slowest rank, divided by k. prep(gen) rewrites part of the input before every
// sample, off the clock. check(gen, k) looks at the result of the first call and at that of the
// last one.
struct Cell {
  std::vector<double> us;
  int k = 1;
  bool ok = true;
};
template <class Prep, class Op, class Check>
Cell sample(const Opt& o, Prep&& prep, Op&& op, Check&& check) {
  Cell c;
  uint32_t gen = 0;
  double t0, t = 0, spent = 0;
  prep(++gen);
  bar();
  op();
  c.ok = check(gen, 1);
  // warm-up and calibration
  for (int i = 0; i < 2 && t < 5e4; i++) {
    prep(++gen);
    bar();
    t0 = now_us();
    op();
    t = max_over_ranks(now_us() - t0);
  }
  c.k = (int)bcast_word(t > 20 ? 1 : std::min(100, (int)std::ceil(40 / std::max(t, 0.2))));
  for (int i = 0;; i++) {
    prep(++gen);
    bar();
    t0 = now_us();
    for (int j = 0; j < c.k; j++) op();
    double d = max_over_ranks(now_us() - t0);
    c.us.push_back(d / c.k);
    spent += d;
    int stop = (spent >= o.budget_us && i + 1 >= o.min_samples) || i + 1 >= o.max_samples ||
               (spent > 1e6 && i >= 1);
    if (bcast_word(stop)) break;
  }
  c.ok = max_over_ranks(check(gen, c.k) && c.ok ? 0 : 1) == 0;
  return c;
}

// Values for the check. Every value is a hash of its writer, its generation (sample or step) and
// its place, so no old, missing or misplaced value can pass for it. Summands have one sign and
// almost one exponent over the ranks (within 4x), so that no rank's part can vanish in a rounding,
// while neighbouring elements differ by many powers of two.
inline uint16_t f2bf(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  u += 0x7fff + ((u >> 16) & 1);
  return u >> 16;
}
inline float bf2f(uint16_t b) {
  uint32_t u = (uint32_t)b << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
inline float as_float(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
inline uint32_t mix(uint32_t seed, uint32_t i) {
  uint32_t h = i * 0x9E3779B1u ^ seed;
  h ^= h >> 15;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  return h ^ h >> 16;
}
inline uint32_t seed_of(uint32_t who, uint32_t gen) { return mix(mix(0x5EED, who), gen); }
// bits of an fp32
inline uint32_t summand(uint32_t common, uint32_t own, uint32_t i, uint32_t lowest,
                        uint32_t spread) {
  uint32_t c = mix(common, i), h = mix(own, i);
  return (c & 0x80000000u) | (lowest + (c >> 8 & spread) + (h >> 31)) << 23 | (h & 0x7FFFFF);
}
// Returns the relative error that a sum of so many terms may have. With bf16, each addition may
// round once to nearest.
inline double tolerance(DT dt, int terms) {
  return dt == U8 ? 0 : (terms - 1) * (dt == F32 ? 0x1p-23 : 0x1.02p-8);
}

// Returns element i of the input of rank `who`. Values are about 2^-119 .. 2^-103, so that even 100
// all-reduces on top of each other stay in range.
inline float elem(DT dt, uint32_t who, uint32_t gen, size_t i) {
  if (dt == U8) return mix(seed_of(who, gen), i / 4) >> 8 * (i % 4) & 0xFF;
  return as_float(summand(seed_of(~0u, gen), seed_of(who, gen), i, 8, 15) &
                  (dt == BF16 ? 0xFFFF0000u : ~0u));
}
inline void put(void* p, DT dt, size_t i, float v) {
  if (dt == F32)
    ((float*)p)[i] = v;
  else if (dt == BF16)
    ((uint16_t*)p)[i] = f2bf(v);
  else
    ((uint8_t*)p)[i] = (uint8_t)v;
}
inline float get(const void* p, DT dt, size_t i) {
  return dt == F32    ? ((const float*)p)[i]
         : dt == BF16 ? bf2f(((const uint16_t*)p)[i])
                      : ((const uint8_t*)p)[i];
}
inline void fill(void* p, DT dt, size_t n, uint32_t who) {  // generation 0
  size_t i = 0;
  const uint32_t s = seed_of(who, 0);
  if (dt == U8)
    for (; i + 4 <= n; i += 4) {
      uint32_t w = mix(s, i / 4);
      memcpy((char*)p + i, &w, 4);
    }
  for (; i < n; i++) put(p, dt, i, elem(dt, who, 0, i));
}
// The harness rewrites these bytes before every sample: 8 bytes at the head of every 4 KiB, in the
// middle, and at the end of a vector of n elements.
inline size_t middle(size_t n, size_t es) { return n * es / 16 * 8; }
inline bool touched(size_t i, size_t n, size_t es) {
  size_t x = i * es, m = middle(n, es);
  return x % 4096 < 8 || (x >= m && x < m + 8) || x + 8 >= n * es;
}
// Calls f for each rewritten element in [b, e).
template <class F>
void each_touched(size_t n, size_t es, size_t b, size_t e, F&& f) {
  auto word = [&](size_t x) {
    for (size_t i = x / es; i * es < x + 8; i++)
      if (i >= b && i < e) f(i);
  };
  for (size_t x = b * es / 4096 * 4096; x < e * es; x += 4096) word(x);
  word(middle(n, es));
  word(n * es - std::min<size_t>(8, n * es));
}
inline void touch(void* p, DT dt, size_t n, uint32_t who, uint32_t gen) {
  each_touched(n, dt_size[dt], 0, n, [&](size_t i) { put(p, dt, i, elem(dt, who, gen, i)); });
}
// Returns true if p, which holds elements [b, e) of a vector of n, has f times the sum over the
// ranks who0 .. who1-1. It looks at every rewritten element and, in every 4 KiB, at one more whose
// place changes.
inline bool check(const void* p, DT dt, size_t n, size_t b, size_t e, uint32_t who0, uint32_t who1,
                  uint32_t gen, double f = 1) {
  const size_t es = dt_size[dt], step = 4096 / es;
  const double tol = tolerance(dt, who1 - who0);
  bool ok = true;
  auto look = [&](size_t i) {
    double s = 0;
    uint32_t g = touched(i, n, es) ? gen : 0;
    for (uint32_t w = who0; w < who1; w++) s += elem(dt, w, g, i);
    ok &= std::fabs(get(p, dt, i - b) - s * f) <= tol * std::fabs(s * f);
  };
  each_touched(n, es, b, e, look);
  for (size_t i = b; i < e; i += step) look(i + mix(gen, i) % std::min(step, e - i));
  return ok;
}

// The values of the FSDP step, for parameter i of unit u in step gen: fp32 parameters with random
// mantissas over 64 powers of two, and bf16 gradients, which differ on every rank. Every element is
// checked.
inline uint32_t seed_param(int u, int i, uint32_t gen) {
  return seed_of(1u << 16 | u << 8 | i, gen);
}
// The seeds of rank -1 would be those of seed_param().
inline uint32_t seed_grad(int rank, int u, int i, uint32_t gen) {
  return seed_of((uint32_t)(rank + 2) << 16 | u << 8 | i, gen);
}
inline uint32_t param_bits(uint32_t seed, uint32_t j) {
  uint32_t h = mix(seed, j);
  return (h & 0x807FFFFFu) | (95 + (h >> 23 & 63)) << 23;
}
inline uint16_t param_bf16(uint32_t seed, uint32_t j) {
  uint32_t b = param_bits(seed, j);
  return (b + 0x7FFF + (b >> 16 & 1)) >> 16;
}
// The first element of each rank's shard changes before every forward gather of the unit
// (occurrence g_occ[u] of the step), as nothing else does within a step: a gather that is skipped
// because the unit's bytes are still there from an earlier layer shows at once.
inline uint32_t g_occ[256];
inline uint32_t head_bits(int u, int i, uint32_t gen, uint32_t j) {
  return param_bits(seed_param(u, i, gen | g_occ[u] << 20), j);
}
inline uint16_t head_bf16(int u, int i, uint32_t gen, uint32_t j) {
  uint32_t b = head_bits(u, i, gen, j);
  return (b + 0x7FFF + (b >> 16 & 1)) >> 16;
}
inline void step_stamp(float* d, int u, int i, uint32_t gen, size_t n) {
  d[0] = as_float(head_bits(u, i, gen, g_rank * (uint32_t)(n / g_size)));
}
// Writes this rank's fp32 shard of a parameter of n elements.
inline void step_shard(float* d, int u, int i, uint32_t gen, size_t n) {
  const uint32_t s = seed_param(u, i, gen), m = n / g_size, base = g_rank * m;
  for (uint32_t j = 0; j < m; j++) d[j] = as_float(param_bits(s, base + j));
}
// Writes this rank's whole gradient.
inline void step_grad(uint16_t* d, int u, int i, uint32_t gen, size_t n) {
  const uint32_t c = seed_param(u, i, ~gen), s = seed_grad(g_rank, u, i, gen);
  for (uint32_t j = 0; j < n; j++) d[j] = summand(c, s, j, 95, 63) >> 16;
}
inline bool step_full_ok(const uint16_t* p, int u, int i, uint32_t gen, size_t n) {
  const uint32_t s = seed_param(u, i, gen), m = n / g_size;
  uint32_t bad = 0;
  for (uint32_t b = 0; b + m <= n; b += m) {
    bad |= p[b] ^ head_bf16(u, i, gen, b);
    for (uint32_t j = b + 1; j < b + m; j++) bad |= p[j] ^ param_bf16(s, j);
  }
  return !bad;
}
// Checks this rank's shard of the mean over the ranks.
inline bool step_reduced_ok(const float* g, int u, int i, uint32_t gen, size_t n, DT rdt) {
  const uint32_t c = seed_param(u, i, ~gen), m = n / g_size, base = g_rank * m;
  const float tol = tolerance(rdt, g_size), scale = 1.f / g_size;
  uint32_t bad = 0;
  float sum[1024];
  for (uint32_t j0 = 0; j0 < m; j0 += 1024) {
    const uint32_t w = std::min(1024u, m - j0);
    for (uint32_t j = 0; j < w; j++) sum[j] = 0;
    for (int r = 0; r < g_size; r++) {
      const uint32_t s = seed_grad(r, u, i, gen);
      for (uint32_t j = 0; j < w; j++)
        sum[j] += as_float(summand(c, s, base + j0 + j, 95, 63) & 0xFFFF0000u);
    }
    for (uint32_t j = 0; j < w; j++)
      bad |= !(std::fabs(g[j0 + j] - sum[j] * scale) <= tol * std::fabs(sum[j] * scale));
  }
  return !bad;
}
// Reads each rank's part of the parameters at its head, middle and end, inside the timed step, as a
// computation would.
inline bool step_use(const uint16_t* p, int u, int i, uint32_t gen, size_t n) {
  const uint32_t s = seed_param(u, i, gen), m = n / g_size;
  bool ok = true;
  for (uint32_t b = 0; b + m <= n; b += m) {
    ok &= p[b] == head_bf16(u, i, gen, b);
    for (uint32_t j : {b + m / 2, b + m - 1})
      if (j > b) ok &= p[j] == param_bf16(s, j);
  }
  return ok;
}

// ---- copy and cast kernels of the schedule (and of backends)
inline void cast_f32_bf16(uint16_t* d, const float* s, size_t n) {
  size_t i = 0;
#ifdef __AVX512BF16__
  for (; i + 32 <= n; i += 32) {
    __m512bh v = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(s + i + 16), _mm512_loadu_ps(s + i));
    memcpy(d + i, &v, 64);
  }
#endif
  for (; i < n; i++) d[i] = f2bf(s[i]);
}
#ifdef __AVX512F__
inline __m512 ld_bf(const uint16_t* s) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)s)), 16));
}
#endif
inline void cast_bf16_f32_scale(float* d, const uint16_t* s, size_t n, float a) {
  size_t i = 0;
#ifdef __AVX512F__
  __m512 m = _mm512_set1_ps(a);
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(d + i, _mm512_mul_ps(ld_bf(s + i), m));
#endif
  for (; i < n; i++) d[i] = bf2f(s[i]) * a;
}
inline void scale_f32(float* d, const float* s, size_t n, float a) {
  for (size_t i = 0; i < n; i++) d[i] = s[i] * a;
}
inline void add_f32(float* d, const float* s, size_t n) {
  for (size_t i = 0; i < n; i++) d[i] += s[i];
}
inline void add_bf16(uint16_t* d, const uint16_t* s, size_t n) {
  size_t i = 0;
#ifdef __AVX512BF16__
  for (; i + 16 <= n; i += 16) {
    __m256bh v = _mm512_cvtneps_pbh(_mm512_add_ps(ld_bf(d + i), ld_bf(s + i)));
    memcpy(d + i, &v, 32);
  }
#endif
  for (; i < n; i++) d[i] = f2bf(bf2f(d[i]) + bf2f(s[i]));
}

// ---- the model shapes
// ----------------------------------------------------------------------------------------
struct Unit {
  std::vector<size_t> n;
  size_t total() const {
    size_t t = 0;
    for (auto x : n) t += x;
    return t;
  }
};
inline Unit llama_layer() {  // Llama-3.2-1B: hidden 2048, 32 heads, 8 kv heads, head 64, mlp 8192
  const size_t h = 2048, kv = 512, m = 8192;
  return {{h * h, kv * h, kv * h, h * h, m * h, m * h, h * m, h, h}};
}
// Returns the root: the embedding, which is also the head, and the final norm.
inline Unit llama_root(int vocab) { return {{(size_t)vocab * 2048, 2048}}; }

// Returns the sizes of the tensors in the state dict of ResNet-50 in floats: 161 parameters and 159
// buffers, 53 of which are one int64 (2 floats here).
inline std::vector<size_t> resnet50(bool small_only) {
  std::vector<size_t> v;
  auto bn = [&](size_t c) {
    for (int i = 0; i < 4; i++) v.push_back(c);
    v.push_back(2);
  };
  auto conv = [&](size_t o, size_t i, size_t k) {
    if (!small_only) v.push_back(o * i * k * k);
    bn(o);
  };
  conv(64, 3, 7);
  size_t in = 64;
  int blocks[4] = {3, 4, 6, 3};
  for (int s = 0; s < 4; s++) {
    size_t w = 64u << s, out = w * 4;
    for (int b = 0; b < blocks[s]; b++) {
      conv(w, in, 1);
      conv(w, w, 3);
      conv(out, w, 1);
      if (b == 0) conv(out, in, 1);
      in = out;
    }
  }
  if (!small_only) v.push_back(1000 * 2048);
  v.push_back(1000);
  return v;
}

inline void* page_alloc(size_t n) {
  n = (n + 4095) & ~(size_t)4095;
  void* p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    exit(3);
  }
  memset(p, 1, n);
  return p;
}
inline void page_free(void* p, size_t n) { munmap(p, (n + 4095) & ~(size_t)4095); }

// ---- the sweep
//
// A backend derives from Backend and has: bool has(coll, dt); allgather(buf, shard_bytes) in place;
// reduce_scatter(in, out, out_count, dt); allreduce(in, out, count, dt); bcast(buf, bytes);
// barrier(). memory() says what the timed calls work on:
//   "caller"  plain private memory, as any caller has it (all peers)
//   "pool"    memory that the library allocates, private to the rank, by alloc and free_
//   "shared"  one physical output per host, which alloc gives. Inputs are private, so the copy into
//             the output is inside the timed call: allgather_from and bcast_from take the place of
//             allgather and bcast.
struct Backend {
  const char* memory() { return "caller"; }
  void* alloc(size_t n) { return page_alloc(n); }
  void free_(void* p, size_t n) { page_free(p, n); }
  void allgather_from(const void* /*own*/, void* /*out*/, size_t /*shard*/) { abort(); }
  void bcast_from(const void* /*src, on rank 0*/, void* /*out*/, size_t /*bytes*/) { abort(); }
};
template <class B>
bool is_shared(B& b) {
  return !strcmp(b.memory(), "shared");
}

template <class B>
void run_colls(B& b, const Opt& o) {
  const int p = g_size, me = g_rank;
  const bool shared = is_shared(b);
  for (auto& c : o.colls) {
    if (c == "barrier") {
      if (!b.has("barrier", U8)) continue;
      Cell r = sample(o, [](uint32_t) {}, [&] { b.barrier(); }, [](uint32_t, int) { return true; });
      emit(o, c, "none", b.memory(), 0, r.k, r.ok, r.us);
      continue;
    }
    if (c.rfind("bcastlist", 0) == 0 || c.rfind("fsdp", 0) == 0) continue;
    DT dt = c.find("_bf16") != std::string::npos  ? BF16
            : c.find("_f32") != std::string::npos ? F32
                                                  : U8;
    std::string base = dt == U8 ? c : c.substr(0, c.rfind('_'));
    if (!b.has(base.c_str(), dt)) continue;
    for (size_t S : o.sizes) {
      const bool sharded = base == "all_gather" || base == "reduce_scatter";
      const size_t es = dt_size[dt], cnt = sharded ? S / es / p * p : S / es, bytes = cnt * es,
                   shard = cnt / p;
      if (cnt == 0) continue;
      auto in_alloc = [&](size_t n) { return shared ? page_alloc(n) : b.alloc(n); };
      auto in_free = [&](void* q, size_t n) {
        if (shared)
          page_free(q, n);
        else
          b.free_(q, n);
      };
      Cell r;
      if (base == "all_gather") {
        char* out = (char*)b.alloc(bytes);
        char* own = shared ? (char*)page_alloc(shard) : out + me * shard;
        memset(out, 0xEE, bytes);
        bar();
        fill(own, U8, shard, me);
        r = sample(
            o, [&](uint32_t gen) { touch(own, U8, shard, me, gen); },
            [&] {
              if (shared)
                b.allgather_from(own, out, shard);
              else
                b.allgather(out, shard);
            },
            [&](uint32_t gen, int) {
              bool ok = true;
              for (int q = 0; q < p; q++)
                ok &= check(out + q * shard, U8, shard, 0, shard, q, q + 1, gen);
              return ok;
            });
        if (shared) page_free(own, shard);
        b.free_(out, bytes);
      } else if (base == "reduce_scatter") {
        void* in = in_alloc(bytes);
        void* out = page_alloc(shard * es);
        fill(in, dt, cnt, me);
        r = sample(
            o, [&](uint32_t gen) { touch(in, dt, cnt, me, gen); },
            [&] { b.reduce_scatter(in, out, shard, dt); },
            [&](uint32_t gen, int) {
              return check(out, dt, cnt, me * shard, (me + 1) * shard, 0, p, gen);
            });
        page_free(out, shard * es);
        in_free(in, bytes);
      } else if (base == "all_reduce") {
        void* in = in_alloc(bytes);
        void* out = b.alloc(bytes);
        fill(in, dt, cnt, me);
        r = sample(
            o, [&](uint32_t gen) { touch(in, dt, cnt, me, gen); },
            [&] { b.allreduce(in, out, cnt, dt); },
            [&](uint32_t gen, int) { return check(out, dt, cnt, 0, cnt, 0, p, gen); });
        b.free_(out, bytes);
        in_free(in, bytes);
      } else if (base == "broadcast") {
        char* out = (char*)b.alloc(bytes);
        char* src = shared ? (char*)page_alloc(bytes) : out;
        memset(out, 0xEE, bytes);
        bar();
        if (me == 0) fill(src, U8, bytes, 0);
        r = sample(
            o,
            [&](uint32_t gen) {
              if (me == 0) touch(src, U8, bytes, 0, gen);
            },
            [&] {
              if (shared)
                b.bcast_from(src, out, bytes);
              else
                b.bcast(out, bytes);
            },
            [&](uint32_t gen, int) { return check(out, U8, bytes, 0, bytes, 0, 1, gen); });
        if (shared) page_free(src, bytes);
        b.free_(out, bytes);
      } else
        continue;
      emit(o, base, dt_name[dt], b.memory(), bytes, r.k, r.ok, r.us);
    }
  }
}

// Broadcasts the tensors of a ResNet-50 from rank 0: each by itself, and packed. A backend that can
// broadcast a list at once has bcast_list(tensors, bytes, count), which takes the place of pack,
// broadcast and unpack.
template <class B, class = void>
struct HasList : std::false_type {};
template <class B>
struct HasList<B, std::void_t<decltype(&B::bcast_list)>> : std::true_type {};
template <class B>
void run_bcastlist(B& b, const Opt& o, const char* name, bool small) {
  std::vector<size_t> L;
  std::vector<char*> t;
  size_t tot = 0;
  const size_t N = resnet50(small).size();
  const bool caller = !strcmp(b.memory(), "caller");
  for (auto n : resnet50(small)) {
    L.push_back(n * 4);
    t.push_back((char*)(caller ? malloc(n * 4) : b.alloc(n * 4)));
    tot += n * 4;
  }
  char* flat = (char*)b.alloc(tot);
  auto reset = [&] {
    for (size_t i = 0; i < N; i++)
      if (g_rank)
        memset(t[i], 0, L[i]);
      else
        fill(t[i], U8, L[i], i);
  };
  auto prep = [&](uint32_t gen) {
    if (g_rank == 0)
      for (size_t i = 0; i < N; i++) touch(t[i], U8, L[i], i, gen);
  };
  auto good = [&](uint32_t gen, int) {
    bool ok = true;
    for (size_t i = 0; i < N; i++) ok &= check(t[i], U8, L[i], 0, L[i], i, i + 1, gen);
    return ok;
  };
  auto line = [&](const char* how, const Cell& r) {
    emit(o, std::string("bcastlist_") + name + how, "f32", b.memory(), tot, r.k, r.ok, r.us,
         ",\"tensors\":" + std::to_string(N));
  };
  reset();
  line("_each", sample(
                    o, prep,
                    [&] {
                      for (size_t i = 0; i < N; i++) b.bcast(t[i], L[i]);
                    },
                    good));
  reset();
  line("_packed", sample(
                      o, prep,
                      [&] {
                        if constexpr (HasList<B>::value)
                          b.bcast_list(t.data(), L.data(), N);
                        else {
                          size_t off = 0;
                          if (g_rank == 0)
                            for (size_t i = 0; i < N; i++) {
                              memcpy(flat + off, t[i], L[i]);
                              off += L[i];
                            }
                          b.bcast(flat, tot);
                          if (g_rank)
                            for (size_t i = 0; i < N; i++) {
                              memcpy(t[i], flat + off, L[i]);
                              off += L[i];
                            }
                        }
                      },
                      good));
  for (size_t i = 0; i < N; i++) {
    if (caller)
      free(t[i]);
    else
      b.free_(t[i], L[i]);
  }
  b.free_(flat, tot);
}

// One FSDP2 step without the computation. Forward gathers the root and L layers; backward gathers
// the L layers again and reduces everything. Unit 0 is the root, and layer l is unit 1 + l % sets.
// There are at most four sets, and each is used at least twice if there are enough layers (three or
// more).
inline std::vector<Unit> step_units(const Opt& o) {
  Unit root = llama_root(o.vocab);
  root.n[0] = root.n[0] / g_size * g_size;
  std::vector<Unit> v(1 + std::min(4, (o.layers + 1) / 2), llama_layer());
  v[0] = root;
  return v;
}
// The step for a library with plain collectives, with the copies that FSDP2 makes. Shards are cast
// to bf16 into the flat send slot, gathered in place, and copied to a buffer for each parameter.
// Gradients are copied in chunks into the flat input, reduced by reduce-scatter, and scaled to
// fp32. A library with fused calls hands run_fsdp a class with the same public members instead:
//   shard(u, i)   this rank's fp32 shard of parameter i of unit u (n / ranks elements; rank r has
//                 [r n/p, (r+1) n/p)), which is written before a step
//   grad(u, i)    this rank's own bf16 gradient of n elements, which is written before a step
//   full(u, i)    the gathered bf16 parameter, from gather(u) until reshard(u); null if the unit is
//                 not there
//   gshard(u, i)  after reduce(u): the mean gradient in fp32, n / ranks elements
//   gather(u), reshard(u), reduce(u); memory(); phase[6], params
template <class B>
struct PlainStep {
  struct Mem {
    std::vector<float*> shard_, gshard_;
    std::vector<uint16_t*> full_, grad_;
  };
  B& b;
  const std::vector<Unit>& units;
  const DT rdt;
  const size_t p = g_size;
  size_t big = 0;
  std::vector<Mem> mem;
  uint16_t* ag;
  char *rsin, *rsout;
  double phase[6] = {};
  const char* params = "private";
  PlainStep(B& b_, const std::vector<Unit>& un, DT rd) : b(b_), units(un), rdt(rd), mem(un.size()) {
    for (size_t u = 0; u < units.size(); u++) {
      big = std::max(big, units[u].total());
      for (auto n : units[u].n) {
        mem[u].shard_.push_back((float*)page_alloc(n / p * 4));
        mem[u].gshard_.push_back((float*)page_alloc(n / p * 4));
        mem[u].full_.push_back((uint16_t*)page_alloc(n * 2));
        mem[u].grad_.push_back((uint16_t*)page_alloc(n * 2));
      }
    }
    ag = (uint16_t*)b.alloc(big * 2);
    rsin = (char*)b.alloc(big * dt_size[rdt]);
    rsout = (char*)page_alloc(big / p * dt_size[rdt]);
  }
  ~PlainStep() {
    for (size_t u = 0; u < units.size(); u++)
      for (size_t i = 0; i < units[u].n.size(); i++) {
        size_t n = units[u].n[i];
        page_free(shard(u, i), n / p * 4);
        page_free(gshard(u, i), n / p * 4);
        page_free(full(u, i), n * 2);
        page_free(grad(u, i), n * 2);
      }
    b.free_(rsin, big * dt_size[rdt]);
    b.free_(ag, big * 2);
    page_free(rsout, big / p * dt_size[rdt]);
  }
  const char* memory() { return b.memory(); }
  float* shard(int u, int i) { return mem[u].shard_[i]; }
  uint16_t* grad(int u, int i) { return mem[u].grad_[i]; }
  uint16_t* full(int u, int i) { return mem[u].full_[i]; }
  float* gshard(int u, int i) { return mem[u].gshard_[i]; }
  void reshard(int) {}
  void gather(int u) {
    auto& n = units[u].n;
    const size_t sh = units[u].total() / p;
    double t0 = now_us();
    for (size_t i = 0, off = 0; i < n.size(); off += n[i++] / p) {
      cast_f32_bf16(ag + g_rank * sh + off, shard(u, i), n[i] / p);
      // Destroys the last content, so that old values cannot pass for new ones.
      for (size_t r = 0; r < p; r++)
        if ((int)r != g_rank) ag[r * sh + off] = ag[r * sh + off + n[i] / p - 1] = 0x7FFF;
    }
    double t1 = now_us();
    b.allgather(ag, sh * 2);
    double t2 = now_us();
    for (size_t r = 0; r < p; r++)
      for (size_t i = 0, off = 0; i < n.size(); off += n[i++] / p)
        memcpy(full(u, i) + r * (n[i] / p), ag + r * sh + off, n[i] / p * 2);
    double t3 = now_us();
    phase[0] += t1 - t0;
    phase[1] += t2 - t1;
    phase[2] += t3 - t2;
  }
  void reduce(int u) {
    auto& n = units[u].n;
    const size_t sh = units[u].total() / p;
    double t0 = now_us();
    for (size_t r = 0; r < p; r++)
      for (size_t i = 0, off = 0; i < n.size(); off += n[i++] / p) {
        size_t m = n[i] / p;
        const uint16_t* g = grad(u, i) + r * m;
        if (rdt == BF16)
          memcpy((uint16_t*)rsin + r * sh + off, g, m * 2);
        else
          cast_bf16_f32_scale((float*)rsin + r * sh + off, g, m, 1.f);
      }
    for (size_t i = 0, off = 0; i < n.size(); off += n[i++] / p)
      for (size_t j : {off, off + n[i] / p - 1}) put(rsout, rdt, j, NAN);
    double t1 = now_us();
    b.reduce_scatter(rsin, rsout, sh, rdt);
    double t2 = now_us();
    for (size_t i = 0, off = 0; i < n.size(); off += n[i++] / p) {
      if (rdt == BF16)
        cast_bf16_f32_scale(gshard(u, i), (uint16_t*)rsout + off, n[i] / p, 1.f / p);
      else
        scale_f32(gshard(u, i), (float*)rsout + off, n[i] / p, 1.f / p);
    }
    double t3 = now_us();
    phase[3] += t1 - t0;
    phase[4] += t2 - t1;
    phase[5] += t3 - t2;
  }
};

// A step class that keeps gathered units for the backward pass has `static constexpr bool keep =
// true`, and its rows say so.
template <class S, class = void>
struct Keeps : std::false_type {};
template <class S>
struct Keeps<S, std::void_t<decltype(S::keep)>> : std::bool_constant<S::keep> {};
template <class S>
void run_fsdp(S& s, const Opt& o, const std::vector<Unit>& units, DT rdt) {
  const int p = g_size, sets = (int)units.size() - 1;
  bool ok = true;
  size_t agB = 0, rsB = 0;
  uint32_t gen = 0;
  auto each = [&](int u, auto&& f) {
    for (size_t i = 0; i < units[u].n.size(); i++) f((int)i, units[u].n[i]);
  };
  auto gather = [&](int u) {
    s.gather(u);
    agB += units[u].total() * 2;
    each(u, [&](int i, size_t n) { ok &= step_use(s.full(u, i), u, i, gen, n); });
  };
  auto forward = [&](int u) {
    g_occ[u]++;
    each(u, [&](int i, size_t n) { step_stamp(s.shard(u, i), u, i, gen, n); });
    gather(u);
  };
  auto reduce = [&](int u) {
    s.reduce(u);
    rsB += units[u].total() * dt_size[rdt];
  };
  for (int st = -1; st < o.steps; st++) {  // step -1: warm-up
    gen++;
    agB = rsB = 0;
    for (int u = 0; u <= sets; u++)
      g_occ[u] = 0, each(u, [&](int i, size_t n) {
        step_shard(s.shard(u, i), u, i, gen, n);
        step_grad(s.grad(u, i), u, i, gen, n);
      });
    for (double& x : s.phase) x = 0;
    bar();
    double t0 = now_us();
    const int nl = st < 0 ? sets : o.layers;
    forward(0);
    for (int l = 0; l < nl; l++) {
      forward(1 + l % sets);
      s.reshard(1 + l % sets);
    }
    for (int l = nl - 1; l >= 0; l--) {
      int u = 1 + l % sets;
      gather(u);
      s.reshard(u);
      reduce(u);
    }
    s.reshard(0);
    reduce(0);
    double d = max_over_ranks(now_us() - t0), m[6];
    for (int i = 0; i < 6; i++) m[i] = sum_over_ranks(s.phase[i]) / p;
    if (st < 0) continue;
    // Checks every element of every parameter. A unit that is no longer there is gathered once
    // more.
    if (st == o.steps - 1)
      for (int u = 0; u <= sets; u++) {
        const bool gone = bcast_word(!s.full(u, 0));
        if (gone) s.gather(u);
        each(u, [&](int i, size_t n) {
          ok &= step_full_ok(s.full(u, i), u, i, gen, n);
          ok &= step_reduced_ok(s.gshard(u, i), u, i, gen, n, rdt);
        });
        if (gone) s.reshard(u);
      }
    char ex[512];
    snprintf(ex, sizeof ex,
             ",\"params\":\"%s\",\"keep\":%s,\"phases_us\":{\"ag_copy_in\":%.0f,\"all_gather\":%."
             "0f,\"ag_copy_out\":%.0f,\"rs_copy_in\":%.0f,\"reduce_scatter\":%.0f,\"rs_out\":%.0f},"
             "\"ag_bytes\":%zu,\"rs_bytes\":%zu,\"layers\":%d,\"vocab\":%d",
             s.params, Keeps<S>::value ? "true" : "false", m[0], m[1], m[2], m[3], m[4], m[5], agB,
             rsB, o.layers, o.vocab);
    emit(o, "fsdp_step", dt_name[rdt], s.memory(), agB + rsB, 1, max_over_ranks(ok ? 0 : 1) == 0,
         {d}, ex);
  }
}

template <class B>
void run_all(B& b, const Opt& o) {
  run_colls(b, o);
  if (is_shared(b)) return;
  for (auto& c : o.colls) {
    if (c == "bcastlist") {
      run_bcastlist(b, o, "resnet50", false);
      run_bcastlist(b, o, "resnet50small", true);
    }
    if (c == "fsdp_bf16" || c == "fsdp_f32") {
      DT rdt = c == "fsdp_f32" ? F32 : BF16;
      auto units = step_units(o);
      if (b.has("all_gather", U8) && b.has("reduce_scatter", rdt)) {
        PlainStep<B> s(b, units, rdt);
        run_fsdp(s, o, units, rdt);
      }
    }
  }
}
}  // namespace fsb
