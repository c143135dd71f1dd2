// Attention of the new ids of a step over the blocks of the KV cache, in float32. Built and called by `cpu.py`.
//
// The queries that share a kv head, of all its query heads and of neighbouring ids, lie side by side in the lanes of
// the vectors. So keys and values are read as they lie in the cache, nothing is summed across lanes, and a mask is a
// comparison in each. The keys of a piece are taken in spans, each by whichever thread is free; what the spans say of a
// query is joined at the end. All spans have one length, so the rest of the step has no effect on the result.

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#if defined(__AVX512F__)
typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t Whole __attribute__((vector_size(64)));
constexpr int TILE = 8;
#else
typedef float Lanes __attribute__((vector_size(32)));
typedef int32_t Whole __attribute__((vector_size(32)));
constexpr int TILE = 4;
#endif

constexpr int WIDTH = sizeof(Lanes) / sizeof(float);
constexpr int LINE = 16;     // numbers that are fetched at once
constexpr int PACE = LINE / TILE; // with a number of a tile out of this many goes a line of what is read next
constexpr int MOST = 3;      // vectors of queries: with TILE keys or values as many sums as there are registers
constexpr int TURN = 64;     // keys whose scores are held at once
constexpr int BLOCK = 16;    // of them, those that lie side by side: the block of the cache
constexpr int SPAN = 1024;   // keys of one task
constexpr int LARGEST = 256; // numbers in a key or a value
constexpr float NEVER = -1e30f;
constexpr size_t MOST_KEPT = 16 << 20; // numbers of scratch memory kept after a step

struct Piece { // `count` ids of the packed row from `start` on, at positions from `first` on in their sequence
    int64_t start, count, first;
    const int64_t *blocks; // of the sequence
};

struct Tensor { // of the new ids: `[heads, ids, size]`
    const float *data;
    int64_t by_head, by_id;
};

struct Task;

struct Step {
    int64_t num_pieces, heads, kv_heads, key_size, value_size, window; // window 0: none
    int64_t num_threads, places;
    double scale;
    float *keys, *values; // of one layer: `[kv_heads, places, size]`
    Tensor query, key, value;
    float *out; // `[ids, heads, value_size]`
    const Piece *pieces;

    int64_t place(const Piece &piece, int64_t head, int64_t position) const {
        return head * places + piece.blocks[position / BLOCK] * BLOCK + position % BLOCK;
    }
    void find(const Task &task, int64_t at, const float *in, int64_t size, const float **out) const;
};

struct Task {
    const Piece *piece;
    int64_t head, row, rows; // queries, counted through the ids and for each through the heads of the kv head
    int64_t begin, end; // keys
    float *found; // `[2 + value_size, rows rounded up]`: largest score, sum of weights, weighted sum of values
};

// The blocks of a turn, which begins at a whole one; for those past the end of the task, any.
inline void Step::find(const Task &task, int64_t at, const float *in, int64_t size, const float **out) const {
    for (int64_t b = 0; b < TURN / BLOCK; b++) {
        const int64_t position = at + b * BLOCK < task.end ? at + b * BLOCK : task.begin;
        out[b] = in + place(*task.piece, task.head, position) * size;
    }
}

static inline int64_t vectors_for(int64_t rows) { return (rows + WIDTH - 1) / WIDTH; }

static inline Lanes exp2_of(Lanes x) { // for x of at most 0
    x = x < -126.0f ? Lanes{} - 126.0f : x;
    Whole whole = __builtin_convertvector(x - 0.5f, Whole);
    Lanes f = x - __builtin_convertvector(whole, Lanes);
    Lanes y = f * 1.5403530e-4f + 1.3333558e-3f;
    y = y * f + 9.6181291e-3f;
    y = y * f + 5.5504109e-2f;
    y = y * f + 2.4022651e-1f;
    y = y * f + 6.9314718e-1f;
    y = y * f + 1.0f;
    Whole power = (whole + 127) << 23;
    return y * (Lanes)power;
}

// Fetches what comes with number i of a tile; the processor's own prefetching comes too late, and all at once waits.
// Not inlined, GCC 12 takes the call for one that does nothing.
[[gnu::always_inline]] static inline void fetch(const float *coming, int64_t i) {
    if (i % PACE == 0) __builtin_prefetch(coming + i / PACE * LINE, 0, 3);
}

template <int V, int N>
static inline void score(const float *keys, int64_t size, const Lanes (*query)[V], const float *coming,
                         Lanes (*out)[V]) {
    Lanes sum[N][V] = {};
    for (int64_t i = 0; i < size; i++) {
        if (N == TILE) fetch(coming, i);
        for (int n = 0; n < N; n++)
            for (int v = 0; v < V; v++) sum[n][v] += keys[n * size + i] * query[i][v];
    }
    for (int n = 0; n < N; n++)
        for (int v = 0; v < V; v++) out[n][v] = sum[n][v];
}

template <int V>
static inline void add_values(const float *const *values, int64_t at, int64_t size, int64_t count,
                              const Lanes (*weight)[V], const Lanes *fade, const float *coming, Lanes (*out)[V]) {
    Lanes sum[TILE][V];
    for (int n = 0; n < TILE; n++)
        for (int v = 0; v < V; v++) sum[n][v] = out[n][v] * fade[v];
    for (int64_t first = 0; first < count; first += BLOCK) {
        const float *from = values[first / BLOCK] + at;
        for (int64_t k = first; k < std::min(count, first + BLOCK); k++, from += size) {
            fetch(coming, k);
            for (int n = 0; n < TILE; n++)
                for (int v = 0; v < V; v++) sum[n][v] += from[n] * weight[k][v];
        }
    }
    for (int n = 0; n < TILE; n++)
        for (int v = 0; v < V; v++) out[n][v] = sum[n][v];
}

template <int V> static void attend(const Step &step, const Task &task) {
    const int64_t groups = step.heads / step.kv_heads, key_size = step.key_size, value_size = step.value_size;
    const float *keys[TURN / BLOCK], *values[TURN / BLOCK], *next[TURN / BLOCK];
    Lanes query[LARGEST][V];
    Lanes weight[TURN][V];
    Lanes largest[V], sum[V], fade[V];
    Whole position[V] = {};
    const float scale = step.scale * 1.4426950408889634; // exp(x) is 2 to the power of x times this
    for (int64_t i = 0; i < key_size; i++)
        for (int v = 0; v < V; v++) query[i][v] = Lanes{};
    for (int64_t r = 0; r < task.rows; r++) {
        int64_t id = (task.row + r) / groups, head = task.head * groups + (task.row + r) % groups;
        const float *from = step.query.data + (task.piece->start + id) * step.query.by_id + head * step.query.by_head;
        position[r / WIDTH][r % WIDTH] = task.piece->first + id;
        for (int64_t i = 0; i < key_size; i++) ((float *)query[i])[r] = from[i] * scale;
    }
    Lanes(*found)[V] = (Lanes(*)[V])task.found;
    for (int v = 0; v < V; v++) largest[v] = sum[v] = Lanes{};
    for (int v = 0; v < V; v++) largest[v] += NEVER;
    for (int64_t i = 0; i < 2 + value_size; i++)
        for (int v = 0; v < V; v++) found[i][v] = Lanes{};
    const int64_t share = TURN * key_size / (value_size / TILE); // of the next keys, to fetch with a tile of values
    const int64_t lowest = position[0][0], highest = task.piece->first + (task.row + task.rows - 1) / groups;
    step.find(task, task.begin, step.keys, key_size, next);
    for (int64_t at = task.begin; at < task.end; at += TURN) {
        const int count = std::min<int64_t>(TURN, task.end - at);
        std::copy(next, next + TURN / BLOCK, keys);
        step.find(task, at, step.values, value_size, values);
        step.find(task, at + TURN, step.keys, key_size, next);
        int k = 0;
        for (; k + TILE <= count; k += TILE) {
            const float *coming = values[k / BLOCK] + k % BLOCK * value_size;
            score<V, TILE>(keys[k / BLOCK] + k % BLOCK * key_size, key_size, query, coming, weight + k);
        }
        for (; k < count; k++)
            score<V, 1>(keys[k / BLOCK] + k % BLOCK * key_size, key_size, query, nullptr, weight + k);
        if (at + count - 1 > lowest || (step.window && at + step.window <= highest))
            for (k = 0; k < count; k++)
                for (int v = 0; v < V; v++) {
                    const int64_t behind = step.window ? at + k + step.window : INT32_MAX;
                    const int32_t key = at + k, out_of_sight = std::min<int64_t>(behind, INT32_MAX);
                    weight[k][v] = position[v] < key ? Lanes{} + NEVER : weight[k][v];
                    weight[k][v] = position[v] >= out_of_sight ? Lanes{} + NEVER : weight[k][v];
                }
        Lanes most[V];
        std::copy(largest, largest + V, most);
        for (k = 0; k < count; k++)
            for (int v = 0; v < V; v++) most[v] = weight[k][v] > most[v] ? weight[k][v] : most[v];
        for (int v = 0; v < V; v++) {
            fade[v] = exp2_of(largest[v] - most[v]);
            largest[v] = most[v];
            sum[v] *= fade[v];
        }
        for (k = 0; k < count; k++)
            for (int v = 0; v < V; v++) sum[v] += weight[k][v] = exp2_of(weight[k][v] - most[v]);
        int64_t block = 0, fetched = 0; // of the next keys
        for (int64_t i = 0; i < value_size; i += TILE, fetched += share) {
            if (fetched >= BLOCK * key_size) block++, fetched -= BLOCK * key_size;
            add_values<V>(values, i, value_size, count, weight, fade, next[block] + fetched, found + 2 + i);
        }
    }
    for (int v = 0; v < V; v++) found[0][v] = largest[v], found[1][v] = sum[v];
}

template <int V> static void join(const Step &step, const Task *task, int64_t num_tasks) {
    const int64_t groups = step.heads / step.kv_heads, size = step.value_size;
    Lanes largest[V], sum[V];
    for (int v = 0; v < V; v++) {
        largest[v] = ((Lanes *)task->found)[v];
        for (int64_t n = 1; n < num_tasks; n++) {
            Lanes other = ((Lanes *)task[n].found)[v];
            largest[v] = other > largest[v] ? other : largest[v];
        }
        sum[v] = Lanes{};
    }
    Lanes total[LARGEST][V];
    for (int64_t i = 0; i < size; i++)
        for (int v = 0; v < V; v++) total[i][v] = Lanes{};
    for (int64_t n = 0; n < num_tasks; n++) {
        const Lanes(*found)[V] = (Lanes(*)[V])task[n].found;
        for (int v = 0; v < V; v++) {
            Lanes share = exp2_of(found[0][v] - largest[v]);
            sum[v] += found[1][v] * share;
            for (int64_t i = 0; i < size; i++) total[i][v] += found[2 + i][v] * share;
        }
    }
    for (int64_t i = 0; i < size; i++)
        for (int v = 0; v < V; v++) total[i][v] /= sum[v];
    for (int64_t r = 0; r < task->rows; r++) {
        int64_t id = task->piece->start + (task->row + r) / groups;
        int64_t head = task->head * groups + (task->row + r) % groups;
        float *out = step.out + (id * step.heads + head) * size;
        for (int64_t i = 0; i < size; i++) out[i] = ((const float *)total[i])[r];
    }
}

static void keep(const Step &step, const Piece &piece, int64_t head) { // the keys and values of the new ids
    for (int64_t i = 0; i < piece.count; i++) {
        const int64_t place = step.place(piece, head, piece.first + i);
        const float *key = step.key.data + head * step.key.by_head + (piece.start + i) * step.key.by_id;
        const float *value = step.value.data + head * step.value.by_head + (piece.start + i) * step.value.by_id;
        std::copy(key, key + step.key_size, step.keys + place * step.key_size);
        std::copy(value, value + step.value_size, step.values + place * step.value_size);
    }
}

static void attend_all(const Step &step) {
    const int64_t groups = step.heads / step.kv_heads;
    static thread_local std::vector<Task> tasks;
    static thread_local std::vector<int64_t> blocks; // the first task of each
    static thread_local std::vector<float> memory;
    tasks.clear();
    blocks.clear();
    int64_t needed = 0;
    for (int64_t p = 0; p < step.num_pieces; p++) {
        const Piece &piece = step.pieces[p];
        if (!piece.count) continue;
        const int64_t rows = piece.count * groups, num_blocks = (rows + MOST * WIDTH - 1) / (MOST * WIDTH);
        const int64_t height = (rows + num_blocks - 1) / num_blocks;
        for (int64_t head = 0; head < step.kv_heads; head++)
            for (int64_t row = 0; row < rows; row += height) {
                const int64_t mine = std::min(height, rows - row), after = piece.first + row / groups + 1;
                const int64_t begin = step.window ? std::max<int64_t>(0, after - step.window) / BLOCK * BLOCK : 0;
                const int64_t end = piece.first + (row + mine - 1) / groups + 1;
                blocks.push_back(tasks.size());
                for (int64_t at = begin; at < end; at += SPAN) {
                    tasks.push_back({&piece, head, row, mine, at, std::min(at + SPAN, end), (float *)needed});
                    needed += (2 + step.value_size) * vectors_for(mine) * WIDTH;
                }
            }
    }
    blocks.push_back(tasks.size());
    if ((int64_t)memory.size() < needed + WIDTH) memory.resize(needed + WIDTH);
    float *base = (float *)(((uintptr_t)memory.data() + sizeof(Lanes) - 1) / sizeof(Lanes) * sizeof(Lanes));
    for (Task &task : tasks) task.found = base + (int64_t)task.found;
    Task *const all = tasks.data();
    const int64_t *const block = blocks.data(), num_tasks = tasks.size(), num_blocks = blocks.size() - 1;
    const int64_t num_kept = step.num_pieces * step.kv_heads;
#pragma omp parallel num_threads(step.num_threads)
    {
#pragma omp for
        for (int64_t n = 0; n < num_kept; n++) keep(step, step.pieces[n / step.kv_heads], n % step.kv_heads);
#pragma omp for schedule(dynamic)
        for (int64_t n = 0; n < num_tasks; n++) {
            const int64_t vectors = vectors_for(all[n].rows);
            vectors == 1 ? attend<1>(step, all[n]) : vectors == 2 ? attend<2>(step, all[n]) : attend<3>(step, all[n]);
        }
#pragma omp for
        for (int64_t n = 0; n < num_blocks; n++) {
            const Task *of = all + block[n];
            const int64_t vectors = vectors_for(of->rows), num = block[n + 1] - block[n];
            vectors == 1 ? join<1>(step, of, num) : vectors == 2 ? join<2>(step, of, num) : join<3>(step, of, num);
        }
    }
    if (memory.size() > MOST_KEPT) std::vector<float>().swap(memory);
}

// Returns nonzero if there is no memory for the results of the spans.
extern "C" int drivetrain_attend(const Step *step) {
    try {
        attend_all(*step);
    } catch (const std::bad_alloc &) {
        return 1;
    }
    return 0;
}
