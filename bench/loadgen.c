/* Load generator for a RocketMQ-protocol broker on loopback.
 *
 * One thread, one epoll. C connections keep W requests outstanding each (closed loop), or a publisher
 * sends at a fixed rate (open loop). Every answer is checked: result code, opaque, queue, offsets,
 * record by record; what does not fit is counted as bad and the first few are described. A send that
 * is refused as busy (flow control, code 2) is counted apart.
 *
 *   loadgen --port P --mode send|batch|pull|e2e [options]      (see usage() below)
 *
 * The result is one JSON object on standard output. A run is bounded by --seconds and by --count.
 * Only 127.0.0.1 is ever connected to.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_MAX 1024
#define QUEUES_MAX 10 /* one digit in the template */
#define PIDS_MAX 16
#define BATCH_MAX 256
#define FRAME_MAX (16 * 1024 * 1024)
#define OPAQUE_BASE 1000000000u /* ten digits always, so that a template can be patched in place */
#define GENERATIONS 1000000u
#define DRAIN_NS 5000000000ull
#define SAMPLES_MAX 5
#define SYSTEM_BUSY 2
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu

enum mode { SEND, BATCH, PULL, E2E };
enum kind { PRODUCER, PULLER };

static struct {
    enum mode mode;
    int port, connections, window, queues, body, batch, topics, consumers, idle, pull_size;
    double seconds, warmup, rate;
    uint64_t count;
    const char *topic, *group;
    int64_t offsets[QUEUES_MAX];
    int pids[PIDS_MAX], pid_count;
} opt = {.mode = SEND, .connections = 8, .window = 32, .queues = 8, .body = 200, .batch = 32,
         .topics = 1, .consumers = 1, .pull_size = 32, .seconds = 1, .topic = "BenchTopic",
         .group = "bench_group"};

struct slot {
    uint32_t opaque; /* 0 = free */
    uint32_t generation;
    int queue, topic;
    int64_t offset;
    uint64_t sent_ns;
};

struct buffer {
    char *data;
    size_t start, end, capacity;
};

struct conn {
    int fd;
    enum kind kind;
    struct buffer in, out;
    struct slot slots[WINDOW_MAX];
    bool writable_wanted, dirty;
};

struct queue_sum { /* the offsets that were answered for a queue: must be one run without gaps */
    uint64_t count, sum;
    int64_t low, high;
};

static struct conn *conns;
static int conn_count, epoll_fd, timer_fd = -1;
static bool issuing = true, measuring;
static uint64_t started_requests, outstanding, next_message, born_ms, run_id;
static uint64_t answered, messages, bytes_in, short_pulls, empty_polls, pushed, skipped, published;
static uint64_t delivered, total_messages, wraps, busy;
static uint64_t bad, bad_code, bad_offsets, unanswered, idle_closed;
static char samples[SAMPLES_MAX][200];
static struct queue_sum *sums;
static int64_t cursors[QUEUES_MAX];
static uint64_t histogram[64 * 64], histogram_total;
static uint32_t crc_table[256];

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "loadgen: %s: %s\n", what, strerror(errno));
    exit(2);
}

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
    if (bad < SAMPLES_MAX) {
        va_list args;
        va_start(args, format);
        vsnprintf(samples[bad], sizeof samples[0], format, args);
        va_end(args);
        for (char *c = samples[bad]; *c; c++)
            if (*c == '"' || *c == '\\' || (unsigned char)*c < 32 || (unsigned char)*c > 126)
                *c = '\'';
    }
    bad++;
}

/* ---- numbers into templates ------------------------------------------------------------------- */

static void put_decimal(char *at, uint64_t value, int digits)
{
    for (int i = digits - 1; i >= 0; i--, value /= 10)
        at[i] = (char)('0' + value % 10);
}

static void put_hex(char *at, uint64_t value, int digits)
{
    for (int i = digits - 1; i >= 0; i--, value >>= 4)
        at[i] = "0123456789ABCDEF"[value & 15];
}

static void put_u32(char *at, uint32_t value)
{
    value = htonl(value);
    memcpy(at, &value, 4);
}

static uint32_t get_u32(const char *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static int64_t get_i64(const char *at)
{
    return (int64_t)((uint64_t)get_u32(at) << 32 | get_u32(at + 4));
}

static uint64_t get_hex(const char *at, int digits)
{
    uint64_t value = 0;
    for (int i = 0; i < digits; i++) {
        char c = at[i];
        value = value << 4 | (uint64_t)(c <= '9' ? c - '0' : (c & 0xDF) - 'A' + 10);
    }
    return value;
}

/* ---- latency ---------------------------------------------------------------------------------- */

static int bucket_of(uint64_t ns)
{
    if (ns < 64)
        return (int)ns;
    int shift = 63 - __builtin_clzll(ns) - 6;
    return (shift + 1) * 64 + (int)((ns >> shift) - 64);
}

static double bucket_value(int bucket)
{
    if (bucket < 64)
        return bucket;
    int shift = bucket / 64 - 1;
    return (double)((uint64_t)(bucket % 64 + 64) << shift) + (double)(1ull << shift) / 2;
}

static void note_latency(uint64_t ns)
{
    histogram[bucket_of(ns)]++;
    histogram_total++;
}

static double percentile_us(double part)
{
    uint64_t wanted = (uint64_t)((double)histogram_total * part), seen = 0;
    for (int i = 0; i < 64 * 64; i++)
        if ((seen += histogram[i]) > wanted)
            return bucket_value(i) / 1000;
    return 0;
}

/* ---- buffers ---------------------------------------------------------------------------------- */

static char *reserve(struct buffer *b, size_t size)
{
    if (b->end + size > b->capacity) {
        if (b->start) {
            memmove(b->data, b->data + b->start, b->end - b->start);
            b->end -= b->start;
            b->start = 0;
        }
        if (b->end + size > b->capacity) {
            b->capacity = (b->end + size) * 2;
            if (!(b->data = realloc(b->data, b->capacity)))
                die("memory");
        }
    }
    return b->data + b->end;
}

/* ---- request templates ------------------------------------------------------------------------ */

static struct template {
    char *frame;
    size_t size;
    int opaque, queue, born, unique, key, topic, body; /* where to patch; -1 = nothing there */
    int item_size;                                     /* batch: distance between two messages */
    int item_unique, item_key, item_body;
} message_template;

static int find(const char *frame, size_t size, const char *needle)
{
    const char *at = memmem(frame, size, needle, strlen(needle));
    return at ? (int)(at - frame + (long)strlen(needle)) : -1;
}

static size_t put_properties(char *at)
{
    static const char text[] = "UNIQ_KEY\1" "7F00000100001F2E0000000000000000" "\2"
                               "KEYS\1" "key0000000000" "\2" "WAIT\1" "true" "\2" "TAGS\1" "TagA" "\2";
    memcpy(at, text, sizeof text - 1);
    return sizeof text - 1;
}

static void make_template(void)
{
    struct template *t = &message_template;
    bool batch = opt.mode == BATCH;
    char topic[300], header[4096], properties[300];
    if (opt.topics > 1)
        snprintf(topic, sizeof topic, "%s00000", opt.topic);
    else
        snprintf(topic, sizeof topic, "%s", opt.topic);
    int header_size = snprintf(
        header, sizeof header,
        "{\"code\":%d,\"extFields\":{\"a\":\"bench_producer\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"8\","
        "\"e\":\"0\",\"f\":\"0\",\"g\":\"0000000000000\",\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\","
        "\"k\":\"false\",\"m\":\"%s\",\"n\":\"broker-a\"},\"flag\":0,\"language\":\"JAVA\","
        "\"opaque\":0000000000,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        batch ? 320 : 310, topic,
        batch ? "UNIQ_KEY\\u00017F00000100001F2E0000000000000000\\u0002WAIT\\u0001true\\u0002"
              : "UNIQ_KEY\\u00017F00000100001F2E0000000000000000\\u0002KEYS\\u0001key0000000000\\u0002"
                "WAIT\\u0001true\\u0002TAGS\\u0001TagA\\u0002",
        batch ? "true" : "false");
    size_t properties_size = put_properties(properties);
    t->item_size = (int)(22 + (size_t)opt.body + properties_size);
    size_t body = batch ? (size_t)t->item_size * (size_t)opt.batch : (size_t)opt.body;
    t->size = 8 + (size_t)header_size + body;
    if (!(t->frame = malloc(t->size)))
        die("memory");
    put_u32(t->frame, (uint32_t)(t->size - 4));
    put_u32(t->frame + 4, (uint32_t)header_size);
    memcpy(t->frame + 8, header, (size_t)header_size);
    size_t head = 8 + (size_t)header_size;
    t->opaque = find(t->frame, head, "\"opaque\":");
    t->queue = find(t->frame, head, "\"e\":\"");
    t->born = find(t->frame, head, "\"g\":\"");
    t->unique = find(t->frame, head, "UNIQ_KEY\\u0001") + 16;
    t->key = batch ? -1 : find(t->frame, head, "KEYS\\u0001key");
    t->topic = opt.topics > 1 ? find(t->frame, head, "\"b\":\"") + (int)strlen(opt.topic) : -1;
    char *at = t->frame + head;
    if (!batch) {
        memset(at, 'x', (size_t)opt.body);
        t->body = (int)head;
        return;
    }
    t->body = (int)head;
    t->item_body = 20;
    t->item_unique = 20 + opt.body + 2 + 9 + 16;
    t->item_key = 20 + opt.body + 2 + 9 + 33 + 5 + 3;
    for (int i = 0; i < opt.batch; i++, at += t->item_size) {
        memset(at, 0, 20);
        put_u32(at, (uint32_t)t->item_size);
        put_u32(at + 16, (uint32_t)opt.body);
        memset(at + 20, 'x', (size_t)opt.body);
        at[20 + opt.body] = (char)(properties_size >> 8);
        at[21 + opt.body] = (char)properties_size;
        memcpy(at + 22 + opt.body, properties, properties_size);
    }
}

/* A body begins with 16 hex digits of send time, 8 of the run and 8 of the message number. */
static void stamp_body(char *at, uint64_t ns, uint64_t number)
{
    if (opt.body < 32)
        return;
    put_hex(at, ns, 16);
    put_hex(at + 16, run_id, 8);
    put_hex(at + 24, number, 8);
}

static uint32_t take_slot(struct slot *slot, int index)
{
    slot->generation = (slot->generation + 1) % GENERATIONS;
    slot->opaque = OPAQUE_BASE + slot->generation * WINDOW_MAX + (uint32_t)index;
    outstanding++;
    started_requests++;
    return slot->opaque;
}

static void issue_message(struct conn *c, int index, uint64_t ns)
{
    struct template *t = &message_template;
    struct slot *slot = &c->slots[index];
    char *frame = reserve(&c->out, t->size);
    memcpy(frame, t->frame, t->size);
    uint64_t number = next_message;
    int per_request = opt.mode == BATCH ? opt.batch : 1;
    next_message += (uint64_t)per_request;
    slot->queue = (int)((number / (uint64_t)per_request) % (uint64_t)opt.queues);
    slot->topic = (int)((number / (uint64_t)per_request / (uint64_t)opt.queues) % (uint64_t)opt.topics);
    slot->sent_ns = ns;
    put_decimal(frame + t->opaque, take_slot(slot, index), 10);
    frame[t->queue] = (char)('0' + slot->queue);
    put_decimal(frame + t->born, born_ms, 13);
    put_hex(frame + t->unique, run_id << 32 | (number & 0xFFFFFFFF), 16);
    if (t->topic >= 0)
        put_decimal(frame + t->topic, (uint64_t)slot->topic, 5);
    if (opt.mode != BATCH) {
        put_decimal(frame + t->key, number, 10);
        stamp_body(frame + t->body, ns, number);
    } else {
        char *item = frame + t->body;
        for (int i = 0; i < opt.batch; i++, number++, item += t->item_size) {
            put_hex(item + t->item_unique, run_id << 32 | (number & 0xFFFFFFFF), 16);
            put_decimal(item + t->item_key, number, 10);
            stamp_body(item + t->item_body, ns, number);
        }
    }
    c->out.end += t->size;
    c->dirty = true;
}

static void issue_pull(struct conn *c, int index, uint64_t ns)
{
    struct slot *slot = &c->slots[index];
    bool hold = opt.mode == E2E;
    char *frame = reserve(&c->out, 2048);
    slot->sent_ns = ns;
    int size = snprintf(
        frame + 8, 2040,
        "{\"code\":11,\"extFields\":{\"queueId\":\"%d\",\"commitOffset\":\"0\",\"subscription\":\"*\","
        "\"suspendTimeoutMillis\":\"15000\",\"bname\":\"broker-a\",\"sysFlag\":\"%d\","
        "\"expressionType\":\"TAG\",\"topic\":\"%s\",\"consumerGroup\":\"%s\",\"maxMsgNums\":\"%d\","
        "\"queueOffset\":\"%lld\",\"subVersion\":\"0\"},\"flag\":0,\"language\":\"JAVA\","
        "\"opaque\":%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        slot->queue, hold ? 6 : 4, opt.topic, opt.group, opt.pull_size, (long long)slot->offset,
        take_slot(slot, index));
    put_u32(frame, (uint32_t)size + 4);
    put_u32(frame + 4, (uint32_t)size);
    c->out.end += (size_t)size + 8;
    c->dirty = true;
}

/* ---- answers ---------------------------------------------------------------------------------- */

struct answer {
    int64_t code, opaque, flag, queue_id, queue_offset, next, low, high;
    const char *remark, *message_id;
    int remark_size, message_id_size;
};

static const char *skip_string(const char *p, const char *end) /* p after the opening quote */
{
    while (p < end && *p != '"')
        p += *p == '\\' ? 2 : 1;
    return p < end ? p : NULL;
}

static int64_t number_at(const char *p, const char *end)
{
    int64_t value = 0;
    bool negative = p < end && *p == '-';
    if (negative)
        p++;
    if (p >= end || *p < '0' || *p > '9')
        return INT64_MIN;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        value = value * 10 + (*p - '0');
    return negative ? -value : value;
}

#define KEY(text) (key_size == sizeof text - 1 && !memcmp(key, text, sizeof text - 1))

static void take_field(struct answer *a, const char *key, int key_size, const char *v, int v_size)
{
    const char *end = v + v_size;
    if (KEY("code"))
        a->code = number_at(v, end);
    else if (KEY("opaque"))
        a->opaque = number_at(v, end);
    else if (KEY("flag"))
        a->flag = number_at(v, end);
    else if (KEY("remark"))
        a->remark = v, a->remark_size = v_size;
    else if (KEY("queueId"))
        a->queue_id = number_at(v, end);
    else if (KEY("queueOffset"))
        a->queue_offset = number_at(v, end);
    else if (KEY("msgId"))
        a->message_id = v, a->message_id_size = v_size;
    else if (KEY("nextBeginOffset"))
        a->next = number_at(v, end);
    else if (KEY("minOffset"))
        a->low = number_at(v, end);
    else if (KEY("maxOffset"))
        a->high = number_at(v, end);
}

/* Read one JSON object of strings, numbers and words; extFields is the only nested one. */
static const char *parse_object(const char *p, const char *end, struct answer *a, int depth)
{
#define SPACES while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++
    SPACES;
    if (p >= end || *p++ != '{' || depth > 1)
        return NULL;
    for (;;) {
        SPACES;
        if (p < end && *p == '}')
            return p + 1;
        if (p < end && *p == ',') {
            p++;
            continue;
        }
        if (p >= end || *p++ != '"')
            return NULL;
        const char *key = p;
        if (!(p = skip_string(p, end)))
            return NULL;
        int key_size = (int)(p++ - key);
        SPACES;
        if (p >= end || *p++ != ':')
            return NULL;
        SPACES;
        if (p >= end)
            return NULL;
        if (*p == '"') {
            const char *value = ++p;
            if (!(p = skip_string(p, end)))
                return NULL;
            take_field(a, key, key_size, value, (int)(p++ - value));
        } else if (*p == '{') {
            if (!(p = parse_object(p, end, a, depth + 1)))
                return NULL;
        } else {
            const char *value = p;
            while (p < end && *p != ',' && *p != '}')
                p++;
            take_field(a, key, key_size, value, (int)(p - value));
        }
    }
}

static uint32_t crc32_of(const char *data, size_t size)
{
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < size; i++)
        crc = crc_table[(crc ^ (unsigned char)data[i]) & 255] ^ crc >> 8;
    return ~crc;
}

/* Walk the records of a pull answer. Returns how many there are, -1 if anything is wrong. */
static int check_records(struct slot *slot, const char *body, size_t size, uint64_t ns)
{
    const char *p = body, *end = body + size;
    int64_t position = -1;
    int count = 0;
    size_t topic_size = strlen(opt.topic);
    for (; p < end; count++) {
        if (end - p < 91)
            return complain("record cut short"), -1;
        size_t total = get_u32(p);
        uint32_t magic = get_u32(p + 4), flags = get_u32(p + 36);
        if (total < 91 || total > (size_t)(end - p) || (magic != MAGIC_V1 && magic != MAGIC_V2))
            return complain("record of %zu bytes with magic %08x", total, magic), -1;
        if ((int)get_u32(p + 12) != slot->queue || get_i64(p + 20) != slot->offset + count)
            return complain("record of queue %d offset %lld, expected %d %lld", (int)get_u32(p + 12),
                            (long long)get_i64(p + 20), slot->queue,
                            (long long)(slot->offset + count)), -1;
        if (get_i64(p + 28) <= position)
            return complain("positions go backwards"), -1;
        position = get_i64(p + 28);
        size_t at = 48u + (flags & 0x10 ? 20u : 8u) + 8 + (flags & 0x20 ? 20u : 8u) + 12;
        size_t body_size = get_u32(p + at);
        const char *text = p + at + 4;
        if (at + 4 + body_size + 2 + topic_size > total)
            return complain("record with a body of %zu bytes", body_size), -1;
        if (count == 0 && (crc32_of(text, body_size) & 0x7FFFFFFF) != get_u32(p + 8))
            return complain("body of offset %lld has another checksum", (long long)slot->offset), -1;
        const char *topic = text + body_size + (magic == MAGIC_V2 ? 2 : 1);
        if ((size_t)(unsigned char)topic[-1] != topic_size || memcmp(topic, opt.topic, topic_size))
            return complain("record of another topic"), -1;
        if (opt.mode == E2E && body_size >= 32 && get_hex(text + 16, 8) == (run_id & 0xFFFFFFFF)) {
            delivered++;
            if (measuring)
                note_latency(ns - get_hex(text, 16));
        }
        p += total;
    }
    return count;
}

static void answer_of_send(struct slot *slot, const struct answer *a, uint64_t ns)
{
    int per_request = opt.mode == BATCH ? opt.batch : 1;
    if (a->code == SYSTEM_BUSY) { /* flow control: not stored, and not wrong */
        busy++;
        published -= published > 0;
        return;
    }
    if (a->code != 0) {
        bad_code++;
        complain("send answered %lld: %.*s", (long long)a->code, a->remark_size, a->remark);
        return;
    }
    if (a->queue_id != slot->queue || a->queue_offset < 0 || !a->message_id ||
        a->message_id_size != 33 * per_request - 1) {
        complain("send answer with queue %lld offset %lld and an id of %d characters",
                 (long long)a->queue_id, (long long)a->queue_offset, a->message_id_size);
        return;
    }
    struct queue_sum *sum = &sums[slot->topic * QUEUES_MAX + slot->queue];
    if (!sum->count || a->queue_offset < sum->low)
        sum->low = a->queue_offset;
    if (!sum->count || a->queue_offset + per_request - 1 > sum->high)
        sum->high = a->queue_offset + per_request - 1;
    sum->count += (uint64_t)per_request;
    for (int i = 0; i < per_request; i++)
        sum->sum += (uint64_t)(a->queue_offset + i);
    total_messages += (uint64_t)per_request;
    if (!measuring)
        return;
    answered++;
    if (opt.mode != E2E) {
        messages += (uint64_t)per_request;
        note_latency(ns - slot->sent_ns);
    }
}

static void answer_of_pull(struct slot *slot, const struct answer *a, const char *body, size_t size,
                           uint64_t ns)
{
    if (opt.mode == E2E && a->code == 19) {
        empty_polls++;
        return;
    }
    if (a->code != 0) {
        bad_code++;
        complain("pull of queue %d offset %lld answered %lld: %.*s", slot->queue,
                 (long long)slot->offset, (long long)a->code, a->remark_size, a->remark);
        slot->offset = cursors[slot->queue];
        return;
    }
    int count = check_records(slot, body, size, ns);
    if (count >= 0 && (count == 0 || a->next != slot->offset + count)) {
        complain("pull at %lld gave %d records and next %lld", (long long)slot->offset, count,
                 (long long)a->next);
        count = -1;
    }
    if (count < 0) {
        slot->offset = cursors[slot->queue];
        return;
    }
    total_messages += (uint64_t)count;
    if (count < opt.pull_size && a->next < a->high)
        short_pulls++;
    slot->offset = a->next;
    if (opt.mode == PULL && slot->offset >= a->high) {
        slot->offset = cursors[slot->queue];
        wraps++;
    }
    if (!measuring)
        return;
    messages += (uint64_t)count;
    if (opt.mode == PULL) {
        answered++;
        note_latency(ns - slot->sent_ns);
    }
}

static void take_frame(struct conn *c, const char *frame, size_t size, uint64_t ns)
{
    uint32_t word = get_u32(frame + 4), header_size = word & 0xFFFFFF;
    struct answer a = {.code = -1, .opaque = -1, .queue_id = -1, .queue_offset = -1, .next = -1};
    a.remark = "";
    if (word >> 24 || header_size + 8 > size ||
        !parse_object(frame + 8, frame + 8 + header_size, &a, 0)) {
        complain("frame without a readable JSON header");
        return;
    }
    if (!(a.flag & 1)) { /* the broker asks something: not ours to answer */
        pushed++;
        return;
    }
    uint32_t index = ((uint32_t)a.opaque - OPAQUE_BASE) % WINDOW_MAX;
    struct slot *slot = &c->slots[index];
    if (a.opaque <= 0 || slot->opaque != (uint32_t)a.opaque) {
        complain("answer with an opaque nobody waits for: %lld", (long long)a.opaque);
        return;
    }
    slot->opaque = 0;
    outstanding--;
    if (c->kind == PRODUCER)
        answer_of_send(slot, &a, ns);
    else
        answer_of_pull(slot, &a, frame + 8 + header_size, size - 8 - header_size, ns);
    if (issuing && opt.count && total_messages >= opt.count)
        issuing = false;
    if (c->kind == PULLER && (issuing || (opt.mode == E2E && delivered < published)))
        issue_pull(c, (int)index, ns);
    else if (c->kind == PRODUCER && issuing && !opt.rate) {
        uint64_t per_request = opt.mode == BATCH ? (uint64_t)opt.batch : 1;
        if (!opt.count || total_messages + outstanding * per_request < opt.count)
            issue_message(c, (int)index, ns);
    }
}

/* ---- sockets ---------------------------------------------------------------------------------- */

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0)
        die("socket");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void flush(struct conn *c)
{
    struct buffer *out = &c->out;
    c->dirty = false;
    while (out->start < out->end) {
        ssize_t n = send(c->fd, out->data + out->start, out->end - out->start, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN)
                die("send");
            break;
        }
        out->start += (size_t)n;
    }
    bool wanted = out->start < out->end;
    if (!wanted)
        out->start = out->end = 0;
    if (wanted != c->writable_wanted) {
        struct epoll_event e = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0u), .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
        c->writable_wanted = wanted;
    }
}

static void receive(struct conn *c)
{
    struct buffer *in = &c->in;
    for (;;) {
        char *room = reserve(in, 256 * 1024);
        size_t free_bytes = in->capacity - in->end;
        ssize_t n = recv(c->fd, room, free_bytes, 0);
        if (n == 0) {
            errno = ECONNRESET;
            die("the broker closed a connection");
        }
        if (n < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return;
            die("recv");
        }
        in->end += (size_t)n;
        if (measuring)
            bytes_in += (uint64_t)n;
        uint64_t ns = now_ns();
        while (in->end - in->start >= 8) {
            size_t size = (size_t)get_u32(in->data + in->start) + 4;
            if (size < 8 || size > FRAME_MAX) {
                errno = EPROTO;
                die("frame length");
            }
            if (in->end - in->start < size)
                break;
            take_frame(c, in->data + in->start, size, ns);
            in->start += size;
        }
        if (in->start == in->end)
            in->start = in->end = 0;
        if ((size_t)n < free_bytes)
            return;
    }
}

/* ---- the run ---------------------------------------------------------------------------------- */

static double cpu_seconds(void)
{
    double total = 0;
    for (int i = 0; i < opt.pid_count; i++) {
        clockid_t clock;
        struct timespec t;
        if (clock_getcpuclockid(opt.pids[i], &clock) || clock_gettime(clock, &t))
            die("cpu clock of the broker");
        total += (double)t.tv_sec + (double)t.tv_nsec / 1e9;
    }
    return total;
}

static void open_connections(void)
{
    bool rated = opt.mode == E2E || opt.rate > 0;
    int producers = opt.mode == PULL ? 0 : opt.connections;
    int pullers = opt.mode == PULL ? opt.connections : opt.mode == E2E ? opt.consumers : 0;
    conn_count = producers + pullers;
    if (!(conns = calloc((size_t)conn_count, sizeof *conns)))
        die("memory");
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < conn_count; i++) {
        conns[i].fd = dial();
        conns[i].kind = i < producers ? PRODUCER : PULLER;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &conns[i]};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, conns[i].fd, &e);
    }
    if (rated) {
        uint64_t tick = (uint64_t)(1e9 / opt.rate);
        tick = tick < 100000 ? 100000 : tick > 900000000 ? 900000000 : tick;
        struct itimerspec every = {{0, (long)tick}, {0, (long)tick}};
        timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        timerfd_settime(timer_fd, 0, &every, NULL);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &e);
    }
}

static void first_requests(void)
{
    uint64_t ns = now_ns();
    int queue = 0;
    for (int i = 0; i < conn_count; i++) {
        struct conn *c = &conns[i];
        if (opt.mode == E2E && c->kind == PULLER) {
            int consumer = i - opt.connections;
            for (int q = consumer; q < opt.queues; q += opt.consumers) {
                c->slots[q].queue = q;
                c->slots[q].offset = cursors[q];
                issue_pull(c, q, ns);
            }
        } else if (c->kind == PULLER) {
            for (int w = 0; w < opt.window; w++, queue++) {
                c->slots[w].queue = queue % opt.queues;
                c->slots[w].offset = cursors[queue % opt.queues];
                issue_pull(c, w, ns);
            }
        } else if (!opt.rate) {
            for (int w = 0; w < opt.window; w++)
                issue_message(c, w, ns);
        }
        flush(c);
    }
}

/* Send what is due by now at the asked rate, spread over the producers' connections. */
static void publish_due(uint64_t start_ns, uint64_t ns)
{
    static int turn;
    static uint64_t due_done;
    uint64_t due = (uint64_t)((double)(ns - start_ns) / 1e9 * opt.rate);
    for (; due_done < due && issuing; due_done++) {
        struct conn *c = &conns[turn++ % opt.connections];
        int w = 0;
        while (w < WINDOW_MAX && c->slots[w].opaque)
            w++;
        if (w == WINDOW_MAX) {
            skipped++;
            continue;
        }
        issue_message(c, w, now_ns());
        published++;
        if (opt.count && published >= opt.count)
            issuing = false;
    }
}

static void run(double *elapsed, double *cpu)
{
    uint64_t start = now_ns(), begin = start + (uint64_t)(opt.warmup * 1e9);
    uint64_t stop = begin + (uint64_t)(opt.seconds * 1e9), measured_from = 0, ended = 0;
    double cpu_begin = 0;
    struct epoll_event events[256];
    first_requests();
    for (;;) {
        uint64_t ns = now_ns();
        struct timespec wall;
        clock_gettime(CLOCK_REALTIME, &wall);
        born_ms = (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000;
        if (!measured_from && ns >= begin) {
            measuring = true;
            measured_from = ns;
            cpu_begin = cpu_seconds();
        }
        if (ns >= stop)
            issuing = false;
        if (!issuing && measuring && (opt.mode != E2E || delivered >= published || ns >= stop)) {
            measuring = false;
            ended = ns;
            *cpu = cpu_seconds() - cpu_begin;
        }
        if (!issuing && !measuring && measured_from) {
            uint64_t held = opt.mode == E2E ? (uint64_t)opt.queues : 0;
            if (outstanding <= held && delivered >= published * (opt.mode == E2E))
                break;
            if (ns > ended + DRAIN_NS) {
                unanswered = opt.mode == E2E ? published - delivered : outstanding;
                break;
            }
        }
        int n = epoll_wait(epoll_fd, events, 256, 10);
        bool timer = false;
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (!c) {
                uint64_t ticks;
                timer = read(timer_fd, &ticks, sizeof ticks) > 0;
                continue;
            }
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                receive(c);
            if (c->dirty || (events[i].events & EPOLLOUT))
                flush(c);
        }
        if (timer && issuing) {
            publish_due(start, now_ns());
            for (int i = 0; i < conn_count; i++)
                if (conns[i].dirty)
                    flush(&conns[i]);
        }
    }
    *elapsed = (double)(ended - measured_from) / 1e9;
}

static void check_offsets(void)
{
    for (int i = 0; i < opt.topics * QUEUES_MAX; i++) {
        struct queue_sum *s = &sums[i];
        if (!s->count)
            continue;
        uint64_t expected = 0, low = (uint64_t)s->low, high = (uint64_t)s->high;
        if ((low + high) % 2)
            expected = (low + high) * (s->count / 2) + (s->count % 2 ? (low + high) / 2 : 0);
        else
            expected = (low + high) / 2 * s->count;
        if (high - low + 1 != s->count || s->sum != expected) {
            bad_offsets++;
            complain("queue %d: %llu offsets between %lld and %lld", i % QUEUES_MAX,
                     (unsigned long long)s->count, (long long)s->low, (long long)s->high);
        }
    }
}

static void usage(void)
{
    fputs("loadgen --port P [--mode send|batch|pull|e2e] [--connections C] [--window W] [--seconds S]\n"
          "  [--warmup S] [--count MESSAGES] [--topic T] [--topics N] [--queues Q] [--body BYTES]\n"
          "  [--batch N] [--pull-size N] [--rate MESSAGES_PER_S] [--consumers K] [--group G]\n"
          "  [--offsets a,b,...] [--idle CONNECTIONS] [--pid BROKER_PID]...\n", stderr);
    exit(2);
}

static void parse_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"port", 1, 0, 'p'}, {"mode", 1, 0, 'm'}, {"connections", 1, 0, 'c'}, {"window", 1, 0, 'w'},
        {"seconds", 1, 0, 's'}, {"warmup", 1, 0, 'u'}, {"count", 1, 0, 'n'}, {"topic", 1, 0, 't'},
        {"topics", 1, 0, 'T'}, {"queues", 1, 0, 'q'}, {"body", 1, 0, 'b'}, {"batch", 1, 0, 'B'},
        {"pull-size", 1, 0, 'P'}, {"rate", 1, 0, 'r'}, {"consumers", 1, 0, 'k'}, {"group", 1, 0, 'g'},
        {"offsets", 1, 0, 'o'}, {"idle", 1, 0, 'i'}, {"pid", 1, 0, 'I'}, {0, 0, 0, 0}};
    int letter;
    while ((letter = getopt_long(argc, argv, "", names, NULL)) != -1) {
        char *text = optarg;
        switch (letter) {
        case 'p': opt.port = atoi(text); break;
        case 'm':
            opt.mode = !strcmp(text, "send") ? SEND : !strcmp(text, "batch") ? BATCH
                     : !strcmp(text, "pull") ? PULL : !strcmp(text, "e2e") ? E2E : (usage(), SEND);
            break;
        case 'c': opt.connections = atoi(text); break;
        case 'w': opt.window = atoi(text); break;
        case 's': opt.seconds = atof(text); break;
        case 'u': opt.warmup = atof(text); break;
        case 'n': opt.count = strtoull(text, NULL, 10); break;
        case 't': opt.topic = text; break;
        case 'T': opt.topics = atoi(text); break;
        case 'q': opt.queues = atoi(text); break;
        case 'b': opt.body = atoi(text); break;
        case 'B': opt.batch = atoi(text); break;
        case 'P': opt.pull_size = atoi(text); break;
        case 'r': opt.rate = atof(text); break;
        case 'k': opt.consumers = atoi(text); break;
        case 'g': opt.group = text; break;
        case 'o':
            for (int i = 0; i < QUEUES_MAX && text && *text; i++) {
                opt.offsets[i] = strtoll(text, &text, 10);
                text += *text == ',';
            }
            break;
        case 'i': opt.idle = atoi(text); break;
        case 'I':
            if (opt.pid_count < PIDS_MAX)
                opt.pids[opt.pid_count++] = atoi(text);
            break;
        default: usage();
        }
    }
    if (opt.port < 1 || opt.port > 65535 || opt.window < 1 || opt.window > WINDOW_MAX ||
        opt.connections < 1 || opt.queues < 1 || opt.queues > QUEUES_MAX || opt.batch < 1 ||
        opt.batch > BATCH_MAX || opt.body < 1 || opt.body > 1 << 20 || opt.topics < 1 ||
        opt.topics > 100000 || opt.consumers < 1 || opt.idle < 0 || opt.seconds <= 0 ||
        opt.seconds > 86400 || strlen(opt.topic) > 120 || (opt.mode == E2E && opt.rate <= 0) ||
        (opt.mode == E2E && opt.body < 32) || opt.pull_size < 1)
        usage();
}

static void report(double elapsed, double cpu)
{
    struct rusage self;
    getrusage(RUSAGE_SELF, &self);
    double own = (double)(self.ru_utime.tv_sec + self.ru_stime.tv_sec) +
                 (double)(self.ru_utime.tv_usec + self.ru_stime.tv_usec) / 1e6;
    printf("{\"seconds\":%.6f,\"requests\":%llu,\"messages\":%llu,\"messages_per_s\":%.1f,"
           "\"broker_cpu_s\":%.6f,\"cpu_us_per_message\":%.4f,\"p50_us\":%.1f,\"p90_us\":%.1f,"
           "\"p99_us\":%.1f,\"p999_us\":%.1f,\"generator_cpu_s\":%.3f,\"bytes_in\":%llu,"
           "\"total_messages\":%llu,\"published\":%llu,\"delivered\":%llu,\"skipped\":%llu,"
           "\"short_pulls\":%llu,\"empty_polls\":%llu,\"wraps\":%llu,\"pushed\":%llu,"
           "\"idle_closed\":%llu,\"busy\":%llu,\"unanswered\":%llu,\"bad_codes\":%llu,\"bad_offsets\":%llu,"
           "\"bad\":%llu,\"bad_samples\":[",
           elapsed, (unsigned long long)answered, (unsigned long long)messages,
           elapsed > 0 ? (double)messages / elapsed : 0, cpu,
           messages ? cpu * 1e6 / (double)messages : 0, percentile_us(.5), percentile_us(.9),
           percentile_us(.99), percentile_us(.999), own, (unsigned long long)bytes_in,
           (unsigned long long)total_messages, (unsigned long long)published,
           (unsigned long long)delivered, (unsigned long long)skipped,
           (unsigned long long)short_pulls, (unsigned long long)empty_polls,
           (unsigned long long)wraps, (unsigned long long)pushed, (unsigned long long)idle_closed,
           (unsigned long long)busy,
           (unsigned long long)unanswered, (unsigned long long)bad_code,
           (unsigned long long)bad_offsets, (unsigned long long)bad);
    for (uint64_t i = 0; i < bad && i < SAMPLES_MAX; i++)
        printf("%s\"%s\"", i ? "," : "", samples[i]);
    printf("]}\n");
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
        crc_table[i] = c;
    }
    run_id = (now_ns() ^ (uint64_t)getpid() << 16) & 0xFFFFFFFF;
    memcpy(cursors, opt.offsets, sizeof cursors);
    if (!(sums = calloc((size_t)opt.topics * QUEUES_MAX, sizeof *sums)))
        die("memory");
    int *idle = calloc((size_t)opt.idle + 1, sizeof *idle);
    for (int i = 0; i < opt.idle; i++)
        idle[i] = dial();
    make_template();
    open_connections();
    double elapsed = 0, cpu = 0;
    run(&elapsed, &cpu);
    char byte;
    for (int i = 0; i < opt.idle; i++)
        if (recv(idle[i], &byte, 1, MSG_PEEK) >= 0 || errno != EAGAIN)
            idle_closed++;
    check_offsets();
    if (unanswered) {
        bad += unanswered - 1;
        complain("%llu never answered", (unsigned long long)unanswered);
    }
    report(elapsed, cpu);
    return 0;
}
