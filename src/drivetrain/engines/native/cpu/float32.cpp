// The product of rows with the weight of a linear layer, in float32. Built and called by `float32.py`.
//
// While a thread multiplies one panel with all rows, it fetches the next one from memory.

#include "panels.h"

constexpr int LINE = 16;   // numbers that are fetched at once
constexpr int LINES = PANEL / LINE;
constexpr int SOON = 20;   // inputs: the panel is in the nearest cache by this much before it is used
constexpr int DEEP = 1024; // inputs of a panel that stay in the next cache while rows are multiplied with them

struct Product {
    int64_t rows, inputs, outputs, num_threads;
    const float *in, *panels, *bias; // bias: filled up to whole panels, or null
    float *out;
};

struct Fetch { // of a panel to come: all lines with the inputs of a tile, or one with every second input, or none
    enum { ALL, ONE, NONE } lines;
    const float *from;
};

template <int R>
static void tile(const float *in, int64_t by_row, const float *panel, int64_t count, Fetch fetch, const float *begin,
                 int64_t begin_by_row, float *out, int64_t out_by_row) {
    Lanes sum[R][WIDE] = {};
    if (begin)
        for (int r = 0; r < R; r++)
            for (int v = 0; v < WIDE; v++) sum[r][v] = stored(begin + r * begin_by_row, v);
    for (int64_t i = 0; i < count; i++, panel += PANEL) {
        if (fetch.lines == Fetch::ALL)
            for (int n = 0; n < LINES; n++) __builtin_prefetch(fetch.from + i * PANEL + n * LINE, 0, 2);
        else if (fetch.lines == Fetch::ONE && i % 2)
            __builtin_prefetch(fetch.from + i / 2 * LINE, 0, 2);
        for (int n = 0; n < LINES; n++) __builtin_prefetch(panel + SOON * PANEL + n * LINE, 0, 3);
        Lanes weight[WIDE];
        for (int v = 0; v < WIDE; v++) weight[v] = stored(panel, v);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < WIDE; v++) sum[r][v] += in[r * by_row + i] * weight[v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < WIDE; v++) *(Stored *)(out + r * out_by_row + v * WIDTH) = sum[r][v];
}

constexpr auto TILES = tiles_of([]<int R>() { return &tile<R>; });

static void multiply(const Product &product, int64_t panel, int64_t start, int64_t count, int64_t next) {
    const float *const in = product.in + start * product.inputs;
    const float *const bias = product.bias ? product.bias + panel * PANEL : nullptr;
    float *const result = product.out + start * product.outputs;
    write_panel(result, product.outputs, panel, count, [&](float *out, int64_t by_row) {
        for (int64_t i = 0; i < product.inputs; i += DEEP) {
            const int64_t deep = std::min<int64_t>(DEEP, product.inputs - i);
            const float *const weight = product.panels + (panel * product.inputs + i) * PANEL;
            const float *const coming = product.panels + (next * product.inputs + i) * PANEL;
            in_tiles(count, [&](int64_t t, int64_t row, int64_t end) {
                Fetch fetch{count <= TALL ? Fetch::ALL : Fetch::NONE, coming};
                if (count > TALL && t < 2 * LINES) fetch = {Fetch::ONE, coming + t * (deep / 2) * LINE};
                TILES[end - row - 1](in + row * product.inputs + i, product.inputs, weight, deep, fetch,
                                     i ? out + row * by_row : bias, i ? by_row : 0, out + row * by_row, by_row);
            });
        }
    });
}

extern "C" void drivetrain_multiply(const Product *of) {
    const Product product = *of;
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(product.num_threads)
    share_out(product.rows, product.outputs, taken, [&](int64_t panel, int64_t start, int64_t count, int64_t next) {
        multiply(product, panel, start, count, next);
    });
}
