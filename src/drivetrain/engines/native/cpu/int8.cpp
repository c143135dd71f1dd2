// The product of rows with the weight of a linear layer in 8 bits. Built and called by `int8.py`, which says what
// mixing is for.
//
// The inputs of a row are mixed and rounded to 16 bits here. Products are summed in 32 bits, which is exact, and these
// sums in float32.

#include <memory>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "panels.h"

constexpr int STEPS = 32767;        // a row's largest input
constexpr int DEEP = 256;           // pairs of inputs that are summed in 32 bits: 2 * DEEP * 127 * STEPS < 2^31
constexpr int LINE = 64;            // bytes that are fetched at once
constexpr int SOON = 1024;          // bytes of the weight: they are fetched by this much before they are used
constexpr int BLOCK = 64;           // inputs that are mixed with each other, where a layer's number has this factor
constexpr float SMALLEST = 1e-30f;  // takes the place of 0 as a row's largest input

typedef int32_t Sums __attribute__((vector_size(sizeof(Lanes))));
typedef int16_t Pairs __attribute__((vector_size(sizeof(Lanes))));
typedef int8_t Bytes __attribute__((vector_size(sizeof(Lanes) / 2), aligned(1)));
typedef float Eight __attribute__((vector_size(32)));
typedef float StoredEight __attribute__((vector_size(32), aligned(4)));
typedef int32_t EightInts __attribute__((vector_size(32)));
typedef int16_t EightShorts __attribute__((vector_size(16)));
typedef int16_t StoredShorts __attribute__((vector_size(16), aligned(2)));

struct Product {
    int64_t rows, inputs, outputs, num_threads, block, row_room;
    const float *in;
    const int8_t *panels;       // the two inputs of a pair side by side
    const float *scales, *bias; // filled up to whole panels
    int16_t *rounded;           // room for the rows: `row_room` is `inputs` or up to seven more
    float *steps;               // what a step of each row is worth
    float *out;
};

static inline Pairs widened(const int8_t *from) {
#if defined(__AVX512BW__)
    return (Pairs)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (Pairs)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
#else
    return __builtin_convertvector(*(const Bytes *)from, Pairs);
#endif
}

static inline Sums plus_products(Sums sum, Pairs one, Pairs other) {
#if defined(__AVX512VNNI__)
    return (Sums)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)one, (__m512i)other);
#elif defined(__AVX512BW__)
    return sum + (Sums)_mm512_madd_epi16((__m512i)one, (__m512i)other);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return sum + (Sums)_mm256_madd_epi16((__m256i)one, (__m256i)other);
#else
    for (int i = 0; i < WIDTH; i++) sum[i] += one[2 * i] * other[2 * i] + one[2 * i + 1] * other[2 * i + 1];
    return sum;
#endif
}

struct Ending { // what follows the sums of all inputs; before those, `scales` is null
    const float *steps, *scales, *bias;
};

template <int R>
static void tile(const int16_t *in, int64_t by_row, const int8_t *panel, int64_t count, bool first, Ending ending,
                 float *out, int64_t out_by_row) {
    Sums sum[R][WIDE] = {};
    for (int64_t i = 0; i < count; i++, panel += 2 * PANEL) {
        for (int n = 0; n < 2 * PANEL; n += LINE) __builtin_prefetch(panel + SOON + n, 0, 3);
        Pairs weight[WIDE];
        for (int v = 0; v < WIDE; v++) weight[v] = widened(panel + v * 2 * WIDTH);
        for (int r = 0; r < R; r++) {
            int32_t pair;
            memcpy(&pair, in + r * by_row + 2 * i, sizeof(pair));
            for (int v = 0; v < WIDE; v++) sum[r][v] = plus_products(sum[r][v], (Pairs)(pair - Sums{}), weight[v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < WIDE; v++) {
            Stored *const place = (Stored *)(out + r * out_by_row + v * WIDTH);
            Lanes found = __builtin_convertvector(sum[r][v], Lanes);
            if (!first) found += *place;
            if (ending.scales) found = found * (ending.steps[r] * stored(ending.scales, v)) + stored(ending.bias, v);
            *place = found;
        }
}

constexpr auto TILES = tiles_of([]<int R>() { return &tile<R>; });

static void multiply(const Product &product, int64_t panel, int64_t start, int64_t count) {
    const int64_t pairs = (product.inputs + 1) / 2, room = product.row_room;
    const int16_t *const in = product.rounded + start * room;
    float *const result = product.out + start * product.outputs;
    write_panel(result, product.outputs, panel, count, [&](float *out, int64_t by_row) {
        for (int64_t pair = 0; pair < pairs; pair += DEEP) {
            const int64_t deep = std::min<int64_t>(DEEP, pairs - pair);
            const int8_t *const weight = product.panels + (panel * pairs + pair) * 2 * PANEL;
            const bool last = pair + deep == pairs;
            in_tiles(count, [&](int64_t, int64_t row, int64_t end) {
                const Ending ending{product.steps + start + row, last ? product.scales + panel * PANEL : nullptr,
                                    product.bias + panel * PANEL};
                TILES[end - row - 1](in + row * room + 2 * pair, room, weight, deep, pair == 0, ending,
                                     out + row * by_row, by_row);
            });
        }
    });
}

template <int HALF> static inline Eight mixed_within(Eight x) {
    Eight other, sign;
    for (int i = 0; i < 8; i++) other[i] = x[i ^ HALF];
    for (int i = 0; i < 8; i++) sign[i] = i & HALF ? -1.0f : 1.0f;
    return other + sign * x;
}

// In place: sums and differences of all pairs that are `half` apart, for each power of two below the number.
template <class Number> static inline void mix(Number *x, int64_t number) {
    for (int64_t half = 1; half < number; half *= 2)
        for (int64_t i = 0; i < number; i++)
            if (!(i & half)) {
                const Number a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
}

static void mix_block(float *x, int64_t block) {
    if (block != BLOCK) return mix(x, block);
    Eight eights[BLOCK / 8];
    memcpy(eights, x, sizeof(eights));
    for (Eight &one : eights) one = mixed_within<4>(mixed_within<2>(mixed_within<1>(one)));
    mix(eights, BLOCK / 8);
    memcpy(x, eights, sizeof(eights));
}

// Returns what a step is worth: not finite if an input is not.
static float round_row(const Product &product, const float *in, float *mixed, int16_t *out) {
    const int64_t inputs = product.inputs, room = product.row_room;
    std::copy(in, in + inputs, mixed);
    std::fill(mixed + inputs, mixed + room, 0.0f);
    for (int64_t i = 0; i < inputs; i += product.block) mix_block(mixed + i, product.block);
    EightInts most = {}; // as bits, which without the sign are in the order of the numbers; NaN is the last
    for (int64_t i = 0; i < room; i += 8) {
        const EightInts bits = (EightInts)(*(const StoredEight *)(mixed + i)) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    for (int i = 1; i < 8; i++) most[0] = std::max(most[0], most[i]);
    float largest;
    memcpy(&largest, &most, sizeof(largest));
    if (largest < SMALLEST) largest = SMALLEST;
    const float by = STEPS / largest;
    const Eight coarse = 0x3p22f - Eight{}; // so large that a sum with it has no digits after the point
    for (int64_t i = 0; i < room; i += 8) {
        const EightInts steps = (EightInts)(*(const StoredEight *)(mixed + i) * by + coarse) - (EightInts)coarse;
        *(StoredShorts *)(out + i) = __builtin_convertvector(steps, EightShorts);
    }
    return largest / STEPS;
}

extern "C" void drivetrain_multiply(const Product *of) {
    const Product product = *of;
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(product.num_threads)
    {
        const std::unique_ptr<float[]> mixed(new float[product.row_room]);
#pragma omp for
        for (int64_t r = 0; r < product.rows; r++)
            product.steps[r] = round_row(product, product.in + r * product.inputs, mixed.get(),
                                         product.rounded + r * product.row_room);
        share_out(product.rows, product.outputs, taken, [&](int64_t panel, int64_t start, int64_t count, int64_t) {
            multiply(product, panel, start, count);
        });
    }
}
