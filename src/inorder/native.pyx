# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled module: batches, index keys, pull replies and rows of a sink, without objects.

Every function has a twin in Python, named beside it, which gives the same bytes more slowly. Input
that is not plain is left to the twin: the function then returns None and has changed nothing.
Lengths come from the wire, so each is compared with the bytes left before a pointer moves by it.
What is compiled, and why: decision 37.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

INTERFACE = 4
"""Goes up with every change of what this module offers; `inorder/accelerated.py` compares it."""

cdef enum:
    ITEM_HEAD = 20
    ITEM_MIN = 23
    PROPERTIES_MAX = 32767
    PRODUCER_MAX = 255
    DIGITS_MAX = 18
    ENTRY_BYTES = 20
    RECORD_HEAD = 88
    RECORD_MIN = 91
    OWN_CRC_MAX = 1024
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    V6_EXTRA = 12
    COLUMNS = 17


# -- numbers, checksums, hashes --------------------------------------------------------------------

cdef inline uint32_t get32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t get64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>get32(p) << 32) | get32(p + 4)


cdef inline void put32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = value >> 24
    p[1] = (value >> 16) & 0xFF
    p[2] = (value >> 8) & 0xFF
    p[3] = value & 0xFF


cdef inline void put64(uint8_t* p, uint64_t value) noexcept nogil:
    put32(p, <uint32_t>(value >> 32))
    put32(p + 4, <uint32_t>(value & 0xFFFFFFFFu))


cdef uint32_t TABLES[16][256]


cdef void make_tables() noexcept:
    cdef uint32_t value
    cdef int i, k
    for i in range(256):
        value = i
        for k in range(8):
            value = (value >> 1) ^ (0xEDB88320u if value & 1 else 0)
        TABLES[0][i] = value
    for i in range(256):
        for k in range(1, 16):
            TABLES[k][i] = (TABLES[k - 1][i] >> 8) ^ TABLES[0][TABLES[k - 1][i] & 0xFF]


make_tables()


cdef uint32_t own_crc(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """CRC-32, sixteen bytes a step."""
    cdef uint32_t crc = 0xFFFFFFFFu
    cdef uint32_t first
    while size >= 16:
        first = crc ^ (
            p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)
        )
        crc = (
            TABLES[15][first & 0xFF] ^ TABLES[14][(first >> 8) & 0xFF]
            ^ TABLES[13][(first >> 16) & 0xFF] ^ TABLES[12][first >> 24]
            ^ TABLES[11][p[4]] ^ TABLES[10][p[5]] ^ TABLES[9][p[6]] ^ TABLES[8][p[7]]
            ^ TABLES[7][p[8]] ^ TABLES[6][p[9]] ^ TABLES[5][p[10]] ^ TABLES[4][p[11]]
            ^ TABLES[3][p[12]] ^ TABLES[2][p[13]] ^ TABLES[1][p[14]] ^ TABLES[0][p[15]]
        )
        p += 16
        size -= 16
    while size > 0:
        crc = (crc >> 8) ^ TABLES[0][(crc ^ p[0]) & 0xFF]
        p += 1
        size -= 1
    return crc ^ 0xFFFFFFFFu


cdef uint32_t body_crc(const uint8_t* p, Py_ssize_t size, object library) except? 0:
    """Return the 31 bits that records store. For long bodies the library is faster."""
    if size <= OWN_CRC_MAX:
        return own_crc(p, size) & 0x7FFFFFFF
    return <uint32_t>library(PyBytes_FromStringAndSize(<const char*>p, size)) & 0x7FFFFFFF


cdef inline uint32_t hash_on(uint32_t value, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Return Java's hashCode of ASCII bytes, continued from `value`."""
    while size >= 4:
        value = value * 923521u + p[0] * 29791u + p[1] * 961u + p[2] * 31u + p[3]
        p += 4
        size -= 4
    while size > 0:
        value = value * 31u + p[0]
        p += 1
        size -= 1
    return value


cdef inline uint32_t absolute(uint32_t value) noexcept nogil:
    if value < 0x80000000u:
        return value
    return 0 if value == 0x80000000u else <uint32_t>(0 - value)


cdef inline bint is_ascii(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    cdef uint64_t seen = 0
    cdef uint64_t word = 0
    while size >= 8:
        memcpy(&word, p, 8)
        seen |= word
        p += 8
        size -= 8
    while size > 0:
        seen |= p[0]
        p += 1
        size -= 1
    return (seen & 0x8080808080808080u) == 0


cdef inline bint holds(const uint8_t* p, int letter, Py_ssize_t size) noexcept nogil:
    return memchr(p, letter, size) != NULL


cdef bint read_number(const uint8_t* p, Py_ssize_t size, int64_t* number) noexcept nogil:
    """Read a decimal number without sign or leading zeros; False if it is anything else."""
    cdef int64_t value = 0
    if size < 1 or size > DIGITS_MAX or (size > 1 and p[0] == c"0"):
        return False
    while size > 0:
        if p[0] < c"0" or p[0] > c"9":
            return False
        value = value * 10 + (p[0] - c"0")
        p += 1
        size -= 1
    number[0] = value
    return True


cdef struct Number:
    uint8_t at
    uint8_t text[20]
    int64_t properties


cdef inline int write_number(Number* out, int64_t number) noexcept nogil:
    """Write a number, or -1, in digits to the end of the text; return how many bytes."""
    cdef uint64_t left
    out.at = 20
    if number < 0:
        out.text[18], out.text[19], out.at = c"-", c"1", 18
        return 2
    left = <uint64_t>number
    while True:
        out.at -= 1
        out.text[out.at] = c"0" + left % 10
        left //= 10
        if left == 0:
            break
    return 20 - out.at


cdef inline uint8_t* put_number(uint8_t* out, Number* number) noexcept nogil:
    memcpy(out, number.text + number.at, 20 - number.at)
    return out + 20 - number.at


cdef class Held:
    """A buffer of another object, held as long as this lives."""

    cdef Py_buffer view
    cdef bint is_held

    def __cinit__(self, data, bint writable=False):
        self.is_held = False
        PyObject_GetBuffer(data, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.is_held = True

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)


# -- batches: broker/sends/service.py --------------------------------------------------------------

cdef struct Item:
    int32_t flag
    int32_t body_at
    int32_t body_end
    int32_t end
    int32_t unique_at
    int32_t unique_size
    int32_t words_at
    int32_t words_size
    int32_t producer_at
    int32_t producer_size
    bint has_number
    bint has_before
    int64_t tag_hash
    int64_t number
    int64_t before
    int64_t position


cdef Py_ssize_t count_sized(const uint8_t* data, Py_ssize_t end, uint32_t least) noexcept:
    """Return how many size-prefixed items fill the bytes exactly; -1 if they do not."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t count = 0
    cdef uint32_t size
    while at < end:
        if end - at < least:
            return -1
        size = get32(data + at)
        if size < least or size > <uint64_t>(end - at):
            return -1
        at += size
        count += 1
    return count


cdef struct Keys:
    const uint8_t* unique
    Py_ssize_t unique_size
    const uint8_t* words
    Py_ssize_t words_size


cdef inline Py_ssize_t keys_max(Py_ssize_t words_size) noexcept nogil:
    """Return how many keys a record with this many bytes of KEYS can have."""
    return 1 + (words_size + 1) // 2


cdef Py_ssize_t hash_keys(uint32_t prefix, const Keys* keys, uint32_t* out) noexcept nogil:
    """Hash the message id and the words of KEYS, all ASCII; return how many there are."""
    cdef const uint8_t* word = keys.words
    cdef const uint8_t* end = word + keys.words_size
    cdef const uint8_t* stop
    cdef Py_ssize_t count = 0
    if keys.unique_size:
        out[count] = absolute(hash_on(prefix, keys.unique, keys.unique_size))
        count += 1
    while word < end:
        stop = <const uint8_t*>memchr(word, c" ", end - word)
        if stop == NULL:
            stop = end
        if stop > word:
            out[count] = absolute(hash_on(prefix, word, stop - word))
            count += 1
        word = stop + 1
    return count


cdef class Batch:
    """The messages of a plain batch, and its sequence numbers."""

    cdef bytes body
    cdef Item* items
    cdef readonly Py_ssize_t count
    cdef readonly bytes producer
    """The producer of the numbers; None: the messages have none."""
    cdef readonly bint named
    cdef readonly int64_t before
    """The number before the first one."""

    def __dealloc__(self):
        PyMem_Free(self.items)

    cdef bint read(self, bytes body) except *:
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(body)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(body)
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t index = count_sized(data, end, ITEM_MIN)
        cdef uint32_t size
        if index <= 0:
            return False
        self.items = <Item*>PyMem_Malloc(index * sizeof(Item))
        if self.items == NULL:
            raise MemoryError
        self.body = body
        self.count = index
        at = 0
        for index in range(self.count):
            size = get32(data + at)
            if not read_item(data, at, at + size, &self.items[index]):
                return False
            at += size
        return self.read_numbers(data)

    cdef bint read_numbers(self, const uint8_t* data) except *:
        """Return whether one producer numbered all messages in a row, or none is numbered."""
        cdef Item* first = &self.items[0]
        cdef Item* item
        cdef Py_ssize_t index
        for index in range(self.count):
            item = &self.items[index]
            if item.has_number != first.has_number:
                return False
            if not item.has_number:
                continue
            if (
                item.unique_size == 0 or item.has_before != first.has_before
                or item.producer_size != first.producer_size
                or memcmp(data + item.producer_at, data + first.producer_at, item.producer_size)
            ):
                return False
            if not item.has_before:
                item.before = item.number - 1
            if item.before >= item.number:
                return False
            if index and item.before != self.items[index - 1].number:
                return False
        if first.has_number:
            self.producer = self.body[first.producer_at : first.producer_at + first.producer_size]
            self.named, self.before = first.has_before, first.before
        return True

    def numbers(self):
        """Return the numbers as the bytes of an array("q")."""
        cdef bytes made = PyBytes_FromStringAndSize(NULL, self.count * sizeof(int64_t))
        cdef int64_t* out = <int64_t*>PyBytes_AS_STRING(made)
        cdef Py_ssize_t index
        for index in range(self.count):
            out[index] = self.items[index].number
        return made

    def size_of(self, Py_ssize_t head_bytes):
        """Return the size of all records, whose head and topic have `head_bytes` bytes."""
        cdef Py_ssize_t total = (head_bytes + 4) * self.count
        cdef Py_ssize_t index
        for index in range(self.count):
            total += self.items[index].end - self.items[index].body_at
        return total

    def pack(
        self, bytearray pending not None, Py_ssize_t at, bytes head not None,
        bytes topic_part not None, int64_t position, int64_t offset, library
    ):
        """Put the records into a buffer, the first one at `at`; return their queue entries.

        `head` is that of all records but for size, checksum, flag, offset and position.
        """
        cdef Py_ssize_t head_bytes = PyBytes_GET_SIZE(head)
        cdef Py_ssize_t topic_bytes = PyBytes_GET_SIZE(topic_part)
        cdef Py_ssize_t total = self.size_of(head_bytes + topic_bytes)
        if head_bytes < 40 or at < 0 or total > PyByteArray_GET_SIZE(pending) - at:
            raise ValueError("the records do not fit into the reserved bytes")
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(self.body)
        cdef uint8_t* out = <uint8_t*>PyByteArray_AS_STRING(pending) + at
        cdef bytes made = PyBytes_FromStringAndSize(NULL, self.count * ENTRY_BYTES)
        cdef uint8_t* entry = <uint8_t*>PyBytes_AS_STRING(made)
        cdef Py_ssize_t index, body_bytes, rest_bytes, size
        cdef Item* item
        for index in range(self.count):
            item = &self.items[index]
            body_bytes = item.body_end - item.body_at + 4  # with their length, which stands before
            rest_bytes = item.end - item.body_end
            size = head_bytes + body_bytes + topic_bytes + rest_bytes
            memcpy(out, PyBytes_AS_STRING(head), head_bytes)
            put32(out, <uint32_t>size)
            put32(out + 8, body_crc(data + item.body_at, body_bytes - 4, library))
            put32(out + 16, <uint32_t>item.flag)
            put64(out + 20, <uint64_t>(offset + index))
            put64(out + 28, <uint64_t>position)
            memcpy(out + head_bytes, data + item.body_at - 4, body_bytes)
            memcpy(out + head_bytes + body_bytes, PyBytes_AS_STRING(topic_part), topic_bytes)
            memcpy(out + size - rest_bytes, data + item.body_end, rest_bytes)
            put64(entry, <uint64_t>position)
            put32(entry + 8, <uint32_t>size)
            put64(entry + 12, <uint64_t>item.tag_hash)
            item.position = position
            position += size
            out += size
            entry += ENTRY_BYTES
        return made

    def ids(self, bytes prefix not None):
        """Return the ids of the packed records as a reply lists them."""
        cdef Py_ssize_t width = PyBytes_GET_SIZE(prefix) + 17
        cdef bytes made = PyBytes_FromStringAndSize(NULL, width * self.count - 1)
        cdef char* out = PyBytes_AS_STRING(made)
        cdef Py_ssize_t index
        cdef int digit
        cdef uint64_t value
        for index in range(self.count):
            if index:
                out[0] = c","
                out += 1
            memcpy(out, PyBytes_AS_STRING(prefix), width - 17)
            out += width - 17
            value = <uint64_t>self.items[index].position
            for digit in range(16):
                out[digit] = b"0123456789ABCDEF"[(value >> (60 - 4 * digit)) & 15]
            out += 16
        return made

    def key_rows(self, uint32_t prefix):
        """Return hashes and positions of the index keys of the packed records: i32, i64."""
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(self.body)
        cdef Py_ssize_t index
        cdef Py_ssize_t most = 0
        cdef Py_ssize_t count = 0
        cdef Item* item
        for index in range(self.count):
            most += keys_max(self.items[index].words_size)
        cdef bytearray hashes = bytearray(most * sizeof(int32_t))
        cdef bytearray places = bytearray(most * sizeof(int64_t))
        cdef uint32_t* hash_out = <uint32_t*>PyByteArray_AS_STRING(hashes)
        cdef int64_t* place_out = <int64_t*>PyByteArray_AS_STRING(places)
        cdef Keys keys
        cdef Py_ssize_t until
        for index in range(self.count):
            item = &self.items[index]
            keys.unique, keys.unique_size = data + item.unique_at, item.unique_size
            keys.words, keys.words_size = data + item.words_at, item.words_size
            until = count + hash_keys(prefix, &keys, hash_out + count)
            while count < until:
                place_out[count] = item.position
                count += 1
        return bytes(hashes[: count * sizeof(int32_t)]), bytes(places[: count * sizeof(int64_t)])


cdef bint read_item(const uint8_t* data, Py_ssize_t at, Py_ssize_t end, Item* item) noexcept nogil:
    """Read the message between two places, which has ITEM_MIN bytes at least."""
    cdef int64_t body_bytes = <int32_t>get32(data + at + 16)
    cdef Py_ssize_t properties
    if body_bytes < 1 or body_bytes > end - at - ITEM_HEAD - 2:
        return False
    item.flag = <int32_t>get32(data + at + 12)
    item.body_at = <int32_t>(at + ITEM_HEAD)
    item.body_end = <int32_t>(item.body_at + body_bytes)
    item.end = <int32_t>end
    properties = (data[item.body_end] << 8) | data[item.body_end + 1]
    if properties > PROPERTIES_MAX or item.body_end + 2 + properties != end:
        return False
    if properties and data[end - 1] == 0:
        return False
    item.unique_at = item.words_at = 0
    item.unique_size = item.words_size = item.producer_size = 0
    item.has_number = item.has_before = False
    item.tag_hash = 0
    return read_properties(data, item.body_end + 2, end, item)


cdef bint read_properties(
    const uint8_t* data, Py_ssize_t at, Py_ssize_t end, Item* item
) noexcept nogil:
    """Read the properties `name \\x01 value \\x02 ...`; False if they are not plain."""
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef const uint8_t* stop
    cdef Py_ssize_t name_bytes, value_bytes
    cdef int wanted = 0  # 1: the number, 2: perhaps its predecessor
    cdef bint has_tag = False
    if not is_ascii(data + at, end - at):
        return False
    while at < end:
        name = data + at
        value = <const uint8_t*>memchr(name, 1, end - at)
        if value == NULL:
            return False
        name_bytes = value - name
        value += 1
        stop = <const uint8_t*>memchr(value, 2, data + end - value)
        if stop == NULL:
            stop = data + end
        value_bytes = stop - value
        at = stop - data + 1
        if name_bytes == 0 or value_bytes == 0:
            return False
        if holds(name, 2, name_bytes) or holds(value, 1, value_bytes):
            return False
        if wanted == 1 and not (name_bytes == 11 and memcmp(name, b"INORDER_SEQ", 11) == 0):
            return False
        if name_bytes == 8 and memcmp(name, b"UNIQ_KEY", 8) == 0:
            if item.unique_size:
                return False
            item.unique_at, item.unique_size = <int32_t>(value - data), <int32_t>value_bytes
        elif name_bytes == 4 and memcmp(name, b"KEYS", 4) == 0:
            if item.words_size:
                return False
            item.words_at, item.words_size = <int32_t>(value - data), <int32_t>value_bytes
        elif name_bytes == 4 and memcmp(name, b"TAGS", 4) == 0:
            if has_tag:
                return False
            has_tag = True
            item.tag_hash = <int32_t>hash_on(0, value, value_bytes)
        elif name_bytes == 11 and memcmp(name, b"INORDER_PID", 11) == 0:
            if item.producer_size or value_bytes > PRODUCER_MAX:
                return False
            item.producer_at, item.producer_size = <int32_t>(value - data), <int32_t>value_bytes
            wanted = 1
            continue
        elif name_bytes == 11 and memcmp(name, b"INORDER_SEQ", 11) == 0:
            if wanted != 1 or not read_number(value, value_bytes, &item.number):
                return False
            item.has_number = True
            wanted = 2
            continue
        elif name_bytes == 12 and memcmp(name, b"INORDER_PREV", 12) == 0:
            if wanted != 2:
                return False
            item.has_before = True
            if value_bytes == 2 and value[0] == c"-" and value[1] == c"1":
                item.before = -1
            elif not read_number(value, value_bytes, &item.before):
                return False
        elif (name_bytes == 5 and memcmp(name, b"DELAY", 5) == 0) or (
            name_bytes >= 7 and memcmp(name, b"TIMER_D", 7) == 0
        ):
            return False
        wanted = 0
    return wanted != 1


def split(bytes body not None, Py_ssize_t size_max):
    """Return the messages of a batch, None if not plain: `split_batch` and `items_in_turn`."""
    if PyBytes_GET_SIZE(body) > min(size_max, 0x7FFFFFFF):
        return None
    cdef Batch batch = Batch.__new__(Batch)
    return batch if batch.read(body) else None


# -- the key index: store/keyindex.py, store/slotarray.py ------------------------------------------

cdef void find_keys(const uint8_t* at, Py_ssize_t size, Keys* keys) noexcept nogil:
    """Find UNIQ_KEY and KEYS in properties as `properties.get` does: the last filled one counts."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    keys.unique = keys.words = at
    keys.unique_size = keys.words_size = 0
    while at < end:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > 9 and memcmp(at, b"UNIQ_KEY\x01", 9) == 0:
            keys.unique, keys.unique_size = at + 9, stop - at - 9
        elif stop - at > 5 and memcmp(at, b"KEYS\x01", 5) == 0:
            keys.words, keys.words_size = at + 5, stop - at - 5
        at = stop + 1


def key_rows(list noted not None, prefix_of, hash_slowly):
    """Return hashes (i32), positions (i64) and store times (i64) of the index keys of records.

    `noted` holds (topic, properties, position, store time) of each record. `prefix_of(topic)` is
    the unsigned hash of the topic's part. `hash_slowly(topic, properties)` returns the hashes of a
    record whose keys are not ASCII.
    """
    cdef tuple records = tuple(noted)  # `found` points into their properties
    cdef Py_ssize_t amount = len(records)
    cdef Py_ssize_t index
    cdef Py_ssize_t most = 0
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t until
    cdef bytes room = PyBytes_FromStringAndSize(NULL, amount * sizeof(Keys))
    cdef Keys* found = <Keys*>PyBytes_AS_STRING(room)
    cdef Keys* keys
    cdef dict slow = {}
    cdef bytes properties
    for index in range(amount):
        properties = records[index][1]
        keys = &found[index]
        find_keys(
            <const uint8_t*>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties), keys
        )
        if is_ascii(keys.unique, keys.unique_size) and is_ascii(keys.words, keys.words_size):
            most += keys_max(keys.words_size)
        else:
            slow[index] = hash_slowly(records[index][0], properties)
            most += len(slow[index])
    cdef bytearray hashes = bytearray(most * sizeof(int32_t))
    cdef bytearray places = bytearray(most * sizeof(int64_t))
    cdef bytearray times = bytearray(most * sizeof(int64_t))
    cdef uint32_t* hash_out = <uint32_t*>PyByteArray_AS_STRING(hashes)
    cdef int64_t* place_out = <int64_t*>PyByteArray_AS_STRING(places)
    cdef int64_t* time_out = <int64_t*>PyByteArray_AS_STRING(times)
    cdef object topic = None
    cdef uint32_t prefix = 0
    cdef int64_t position, time_ms
    for index in range(amount):
        record = records[index]
        position, time_ms = record[2], record[3]
        if slow and index in slow:
            until = count
            for one in slow[index]:
                hash_out[until] = one
                until += 1
        else:
            if record[0] is not topic:
                topic = record[0]
                prefix = prefix_of(topic)
            until = count + hash_keys(prefix, &found[index], hash_out + count)
        while count < until:
            place_out[count], time_out[count] = position, time_ms
            count += 1
    return (
        bytes(hashes[: count * sizeof(int32_t)]), bytes(places[: count * sizeof(int64_t)]),
        bytes(times[: count * sizeof(int64_t)]),
    )


def chain(
    values, bytes hashes not None, bytes places not None, bytes times not None, int64_t begin_ms,
    int32_t first,
):
    """Make index entries `first`, `first + 1`, ... of keys; `values` is left as it was.

    `times` are store times. Returns the entries, how many slots were empty, and the slot of each.
    """
    cdef Held held = Held(values, True)
    cdef int32_t* slots = <int32_t*>held.view.buf
    cdef uint32_t slot_count = <uint32_t>(held.view.len // sizeof(int32_t))
    cdef Py_ssize_t count = PyBytes_GET_SIZE(hashes) // sizeof(int32_t)
    if (
        slot_count == 0 or PyBytes_GET_SIZE(places) // <Py_ssize_t>sizeof(int64_t) != count
        or PyBytes_GET_SIZE(times) // <Py_ssize_t>sizeof(int64_t) != count
    ):
        raise ValueError("there are slots, and a place and a time for each hash")
    cdef const uint32_t* hash_in = <const uint32_t*>PyBytes_AS_STRING(hashes)
    cdef const int64_t* place_in = <const int64_t*>PyBytes_AS_STRING(places)
    cdef const int64_t* time_in = <const int64_t*>PyBytes_AS_STRING(times)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, count * ENTRY_BYTES)
    cdef bytes chosen = PyBytes_FromStringAndSize(NULL, count * sizeof(int32_t))
    cdef uint8_t* entry = <uint8_t*>PyBytes_AS_STRING(made)
    cdef int32_t* slot_out = <int32_t*>PyBytes_AS_STRING(chosen)
    cdef Py_ssize_t index
    cdef int32_t slot
    cdef int64_t seconds
    cdef Py_ssize_t used = 0
    for index in range(count):
        slot = <int32_t>(hash_in[index] % slot_count)
        slot_out[index] = slot
        seconds = (time_in[index] - begin_ms) // 1000 if time_in[index] > begin_ms else 0
        put32(entry, hash_in[index])
        put64(entry + 4, <uint64_t>place_in[index])
        put32(entry + 12, <uint32_t>min(seconds, <int64_t>0x7FFFFFFF))
        put32(entry + 16, <uint32_t>slots[slot])
        used += slots[slot] == 0
        slots[slot] = first + <int32_t>index
        entry += ENTRY_BYTES
    while count > 0:  # backwards: the first entry of a slot holds the slot's former value
        count -= 1
        entry -= ENTRY_BYTES
        slots[slot_out[count]] = <int32_t>get32(entry + 16)
    return made, used, chosen


def enter(values, bytes chosen not None, int32_t first, int32_t region_slots):
    """Let slots point at the entries that `chain` made; return the regions that changed."""
    cdef Held held = Held(values, True)
    cdef int32_t* slots = <int32_t*>held.view.buf
    cdef Py_ssize_t slot_count = held.view.len // sizeof(int32_t)
    cdef const int32_t* slot_in = <const int32_t*>PyBytes_AS_STRING(chosen)
    cdef Py_ssize_t index
    if region_slots < 1:
        raise ValueError("a region has a slot at least")
    cdef bytearray changed = bytearray(slot_count // region_slots + 1)
    cdef uint8_t* is_changed = <uint8_t*>PyByteArray_AS_STRING(changed)
    for index in range(PyBytes_GET_SIZE(chosen) // sizeof(int32_t)):
        if slot_in[index] < 0 or slot_in[index] >= slot_count:
            raise ValueError("there is no such slot")
        slots[slot_in[index]] = first + <int32_t>index
        is_changed[slot_in[index] // region_slots] = 1
    return [index for index in range(len(changed)) if is_changed[index]]


def slots_outside(values, int32_t count):
    """Return the slots that point at no entry below `count`."""
    cdef Held held = Held(values)
    cdef const int32_t* slots = <const int32_t*>held.view.buf
    cdef Py_ssize_t index
    cdef list found = []
    for index in range(held.view.len // <Py_ssize_t>sizeof(int32_t)):
        if slots[index] < 0 or slots[index] >= count:
            found.append(index)
    return found


# -- pull replies: spark/source/columns.py ---------------------------------------------------------

def read_records(bytes data not None, bint check_crc, library):
    """Return the heads of all records of a reply as columns of i64, None if one is not plain.

    COLUMNS of them, one behind the other, in the order of `read_record`.
    """
    cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t count = count_sized(base, end, RECORD_MIN)
    cdef uint32_t size
    if count < 0:
        return None
    cdef bytes made = PyBytes_FromStringAndSize(NULL, count * COLUMNS * sizeof(int64_t))
    cdef int64_t* out = <int64_t*>PyBytes_AS_STRING(made)
    cdef Py_ssize_t index
    at = 0
    for index in range(count):
        size = get32(base + at)
        if not read_record(base, at, at + size, out + index, count):
            return None
        if check_crc and out[index + 13 * count] > out[index + 12 * count]:
            if body_crc(
                base + out[index + 12 * count],
                out[index + 13 * count] - out[index + 12 * count], library
            ) != <uint32_t>out[index + 9 * count]:
                return None
        at += size
    return made


cdef bint read_record(
    const uint8_t* base, Py_ssize_t at, Py_ssize_t end, int64_t* out, Py_ssize_t step
) noexcept nogil:
    """Read one record, which has RECORD_MIN bytes at least; its numbers lie `step` apart."""
    cdef const uint8_t* p = base + at
    cdef int32_t magic = <int32_t>get32(p + 4)
    cdef int32_t sys_flag = <int32_t>get32(p + 36)
    cdef Py_ssize_t born = V6_EXTRA if sys_flag & BORN_V6 else 0
    cdef Py_ssize_t hosts = born + (V6_EXTRA if sys_flag & STORE_V6 else 0)
    cdef Py_ssize_t wide = 1 if magic == MAGIC_V2 else 0
    cdef int64_t body_bytes
    cdef Py_ssize_t topic_bytes, properties, next
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or end - at < RECORD_MIN + hosts + wide:
        return False
    body_bytes = <int32_t>get32(p + hosts + RECORD_HEAD - 4)
    if body_bytes < 0 or body_bytes > end - at - RECORD_MIN - hosts - wide:
        return False
    out[0 * step] = at
    out[1 * step] = <int32_t>get32(p + 12)
    out[2 * step] = <int64_t>get64(p + 20)
    out[3 * step] = <int64_t>get64(p + 28)
    out[4 * step] = sys_flag
    out[5 * step] = <int64_t>get64(p + 40)
    out[6 * step] = <int64_t>get64(p + born + 56)
    out[7 * step] = <int32_t>get32(p + hosts + 72)
    out[8 * step] = magic
    out[9 * step] = <int32_t>get32(p + 8)
    out[10 * step] = end - at
    out[11 * step] = sys_flag & (BORN_V6 | STORE_V6)
    next = at + RECORD_HEAD + hosts
    out[12 * step] = next
    next += body_bytes
    out[13 * step] = next
    topic_bytes = base[next]
    if wide:
        topic_bytes = (topic_bytes << 8) | base[next + 1]
    next += 1 + wide
    if topic_bytes > end - next - 2:
        return False
    out[14 * step] = next
    next += topic_bytes
    out[15 * step] = next
    properties = (base[next] << 8) | base[next + 1]
    out[16 * step] = next + 2
    return next + 2 + properties == end


def gather(data, starts, ends):
    """Return offsets (i32) and bytes of stretches, as Arrow keeps them: `pieces`."""
    cdef Held held = Held(data)
    cdef Held held_starts = Held(starts)
    cdef Held held_ends = Held(ends)
    cdef const uint8_t* base = <const uint8_t*>held.view.buf
    cdef const int64_t* start_in = <const int64_t*>held_starts.view.buf
    cdef const int64_t* end_in = <const int64_t*>held_ends.view.buf
    cdef Py_ssize_t count = held_starts.view.len // sizeof(int64_t)
    if held_ends.view.len != held_starts.view.len:
        raise ValueError("as many ends as starts")
    cdef bytes bounds = PyBytes_FromStringAndSize(NULL, (count + 1) * sizeof(int32_t))
    cdef int32_t* bound_out = <int32_t*>PyBytes_AS_STRING(bounds)
    cdef int64_t total = 0
    cdef Py_ssize_t index
    for index in range(count):
        if not 0 <= start_in[index] <= end_in[index] <= held.view.len:
            raise ValueError("a stretch lies outside of the data")
        bound_out[index] = <int32_t>total
        total += end_in[index] - start_in[index]
        if total > 0x7FFFFFFF:
            raise ValueError("too much for one column")
    bound_out[count] = <int32_t>total
    cdef bytes made = PyBytes_FromStringAndSize(NULL, total)
    cdef char* out = PyBytes_AS_STRING(made)
    for index in range(count):
        memcpy(out + bound_out[index], base + start_in[index], end_in[index] - start_in[index])
    return bounds, made


def property_bounds(bytes data not None, starts, ends, bytes name not None):
    """Return where the values of a property begin and end (i64 each), begin -1 where it is missing.

    None if the properties of some record are not plain: `split_properties`.
    """
    cdef Held held_starts = Held(starts)
    cdef Held held_ends = Held(ends)
    cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const int64_t* start_in = <const int64_t*>held_starts.view.buf
    cdef const int64_t* end_in = <const int64_t*>held_ends.view.buf
    cdef Py_ssize_t count = held_starts.view.len // sizeof(int64_t)
    if held_ends.view.len != held_starts.view.len:
        raise ValueError("as many ends as starts")
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 2 * count * sizeof(int64_t))
    cdef int64_t* out = <int64_t*>PyBytes_AS_STRING(made)
    cdef Py_ssize_t index
    for index in range(count):
        if not 0 <= start_in[index] <= end_in[index] <= PyBytes_GET_SIZE(data):
            raise ValueError("properties lie outside of the data")
        out[index], out[count + index] = -1, -1
        if not find_property(
            base, start_in[index], end_in[index], PyBytes_AS_STRING(name),
            PyBytes_GET_SIZE(name), out + index, out + count + index
        ):
            return None
    return made


cdef bint find_property(
    const uint8_t* base, Py_ssize_t at, Py_ssize_t end, const char* name, Py_ssize_t size,
    int64_t* start, int64_t* stop
) noexcept nogil:
    cdef const uint8_t* mark
    cdef const uint8_t* last
    if not is_ascii(base + at, end - at):
        return False
    while at < end:
        mark = <const uint8_t*>memchr(base + at, 1, end - at)
        if mark == NULL:
            return False
        last = <const uint8_t*>memchr(mark, 2, base + end - mark)
        if last == NULL:
            last = base + end
        if mark == base + at or last == mark + 1 or holds(base + at, 2, mark - base - at):
            return False
        if mark - base - at == size and memcmp(base + at, name, size) == 0:
            start[0], stop[0] = mark + 1 - base, last - base
        at = last - base + 1
    return True


# -- rows of a sink: spark/sink/packing.py ---------------------------------------------------------

cdef struct Column:
    const uint8_t* validity
    const int32_t* bounds
    const uint8_t* data
    int64_t data_bytes
    int64_t first
    int64_t rows
    const char* head
    Py_ssize_t head_bytes


cdef int value_at(Column* column, int64_t row, const uint8_t** value, int64_t* size) except -1:
    """Find the bytes of a row; 0 if it has none."""
    if not 0 <= row < column.rows:
        raise ValueError("there is no such row")
    row += column.first
    size[0] = 0
    if column.validity != NULL and not (column.validity[row >> 3] >> (row & 7)) & 1:
        return 0
    if not 0 <= column.bounds[row] <= column.bounds[row + 1] <= column.data_bytes:
        raise ValueError("a value lies outside of its column")
    value[0] = column.data + column.bounds[row]
    size[0] = column.bounds[row + 1] - column.bounds[row]
    return size[0] > 0


cdef int take_column(Column* column, object given, list held) except -1:
    """Take (head, rows, first, validity, bounds, data); the buffers are kept in `held`."""
    head, rows, first, validity, bounds, data = given
    cdef Held one
    if not isinstance(head, bytes):
        raise TypeError("the head of a column is bytes")
    held.append(head)
    column.head, column.head_bytes = PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head)
    column.rows, column.first = rows, first
    if column.rows < 0 or column.first < 0:
        raise ValueError("a column has no rows before its first")
    column.validity = NULL
    if validity is not None:
        one = Held(validity)
        held.append(one)
        column.validity = <const uint8_t*>one.view.buf
        if one.view.len * 8 < column.first + column.rows:
            raise ValueError("a column has more rows than bits")
    one = Held(bounds)
    held.append(one)
    column.bounds = <const int32_t*>one.view.buf
    if one.view.len // <Py_ssize_t>sizeof(int32_t) < column.first + column.rows + 1:
        raise ValueError("a column has more rows than bounds")
    one = Held(b"" if data is None else data)
    held.append(one)
    column.data, column.data_bytes = <const uint8_t*>one.view.buf, one.view.len
    return 0


cdef class Packing:
    """Rows of one producer and one queue, packed into the bodies of requests."""

    cdef Column columns[8]
    cdef Py_ssize_t column_count
    cdef const int64_t* rows
    cdef const int64_t* numbers
    cdef int64_t before
    cdef Py_ssize_t count
    cdef bytes id_head, middle, number_head, before_head
    cdef list held

    def __cinit__(self, columns, rows, numbers, int64_t before, words):
        self.held = []
        if not 1 <= len(columns) <= 8:
            raise ValueError("at most eight columns, the bodies first")
        self.column_count = len(columns)
        for index, given in enumerate(columns):
            take_column(&self.columns[index], given, self.held)
        cdef Held held_rows = Held(rows)
        cdef Held held_numbers = Held(numbers)
        self.held += [held_rows, held_numbers]
        if held_rows.view.len != held_numbers.view.len:
            raise ValueError("as many numbers as rows")
        self.rows = <const int64_t*>held_rows.view.buf
        self.numbers = <const int64_t*>held_numbers.view.buf
        self.count = held_rows.view.len // sizeof(int64_t)
        self.before = before
        self.id_head, self.middle, self.number_head, self.before_head = words
        if self.before_head and not self.number_head:
            raise ValueError("a row without a number follows none")

    cdef int64_t properties_size(self, Py_ssize_t index, Number* number) except -2:
        """Return how long the properties of a row are, -1 if it is not plain; write its number.

        That of the row before it stands before it.
        """
        cdef const uint8_t* value = NULL
        cdef int64_t size = 0
        cdef int64_t before = self.numbers[index - 1] if index else self.before
        cdef int64_t total = len(self.id_head) + 16 + len(self.middle) + len(self.number_head)
        cdef Py_ssize_t which
        if before < -1 or self.numbers[index] < 0:
            return -1
        size = write_number(number, self.numbers[index])
        if len(self.number_head):  # else the rows have no numbers
            total += size + 1
        if len(self.before_head):
            total += len(self.before_head) + 20 - (number - 1).at
        for which in range(1, self.column_count):
            if value_at(&self.columns[which], self.rows[index], &value, &size):
                total += size
                if self.columns[which].head_bytes:  # without a name it is joined already
                    total += self.columns[which].head_bytes + 1
                    if holds(value, 1, size) or holds(value, 2, size):
                        return -1
        return total if total <= PROPERTIES_MAX else -1

    cdef uint8_t* write(self, uint8_t* out, Py_ssize_t index, Number* written) except NULL:
        """Write an item; return where it ends."""
        cdef int64_t properties = written.properties
        cdef const uint8_t* value = NULL
        cdef int64_t size = 0
        cdef Py_ssize_t which
        cdef int digit
        cdef uint64_t number = <uint64_t>self.numbers[index]
        value_at(&self.columns[0], self.rows[index], &value, &size)
        put32(out, <uint32_t>(ITEM_HEAD + 2 + size + properties))
        put32(out + 4, 0)
        put32(out + 8, 0)
        put32(out + 12, 0)
        put32(out + 16, <uint32_t>size)
        memcpy(out + ITEM_HEAD, value, size)
        out += ITEM_HEAD + size
        out[0], out[1] = (properties >> 8) & 0xFF, properties & 0xFF
        out = put_bytes(out + 2, self.id_head)
        for digit in range(16):
            out[digit] = b"0123456789ABCDEF"[(number >> (60 - 4 * digit)) & 15]
        out = put_bytes(out + 16, self.middle)
        for which in range(1, self.column_count):
            if value_at(&self.columns[which], self.rows[index], &value, &size):
                memcpy(out, self.columns[which].head, self.columns[which].head_bytes)
                out += self.columns[which].head_bytes
                memcpy(out, value, size)
                out += size
                if self.columns[which].head_bytes:
                    out[0] = 2
                    out += 1
        if not len(self.number_head):
            return out
        out = put_bytes(out, self.number_head)
        out = put_number(out, written)
        if len(self.before_head):
            out = put_bytes(out, self.before_head)
            out = put_number(out, written - 1)
        out[0] = 2
        return out + 1

    cdef object chunk(self, Py_ssize_t start, Py_ssize_t most, int64_t bytes_max):
        """Return the body of a request that begins with a row, and the row behind it."""
        cdef const uint8_t* value = NULL
        cdef int64_t size = 0
        cdef int64_t properties
        cdef int64_t total = 0
        cdef Py_ssize_t end = start
        most = min(most, self.count - start)
        cdef bytes room = PyBytes_FromStringAndSize(NULL, (most + 1) * sizeof(Number))
        cdef Number* number = <Number*>PyBytes_AS_STRING(room)
        write_number(number, self.numbers[start - 1] if start else self.before)
        number += 1
        while end - start < most:
            properties = self.properties_size(end, number + (end - start))
            if properties < 0 or not value_at(&self.columns[0], self.rows[end], &value, &size):
                return None
            if end > start and total + ITEM_HEAD + 2 + size + properties > bytes_max:
                break
            total += ITEM_HEAD + 2 + size + properties
            number[end - start].properties = properties
            end += 1
        cdef bytes made = PyBytes_FromStringAndSize(NULL, total)
        cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(made)
        cdef Py_ssize_t index
        for index in range(start, end):
            out = self.write(out, index, number + (index - start))
        return made, end


cdef inline uint8_t* put_bytes(uint8_t* out, bytes text):
    memcpy(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return out + PyBytes_GET_SIZE(text)


def pack_rows(columns, rows, numbers, int64_t before, words, Py_ssize_t most, int64_t bytes_max):
    """Return bodies of requests as (body, first row, row behind it), None if a row is not plain."""
    cdef Packing packing = Packing(columns, rows, numbers, before, words)
    cdef Py_ssize_t start = 0
    found = []
    if most < 1:
        raise ValueError("a request has a row at least")
    while start < packing.count:
        made = packing.chunk(start, most, bytes_max)
        if made is None:
            return None
        found.append((made[0], start, made[1]))
        start = made[1]
    return found


def queues_of_keys(column, rows, uint32_t queues):
    """Return the index of the queue (i64) of each row's key: `queue_for_key`.

    None if a row has no key, or a key that is not ASCII.
    """
    cdef Column keys
    cdef list held = []
    cdef const uint8_t* value = NULL
    cdef int64_t size = 0
    cdef Held held_rows = Held(rows)
    cdef const int64_t* row_in = <const int64_t*>held_rows.view.buf
    cdef Py_ssize_t count = held_rows.view.len // sizeof(int64_t)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
    cdef int64_t* out = <int64_t*>PyBytes_AS_STRING(made)
    cdef Py_ssize_t index
    cdef uint32_t found
    if queues == 0:
        raise ValueError("a key needs at least one queue")
    take_column(&keys, column, held)
    for index in range(count):
        if not value_at(&keys, row_in[index], &value, &size) or not is_ascii(value, size):
            return None
        found = hash_on(0, value, size)
        out[index] = (found if found < 0x80000000u else <uint32_t>(0 - found)) % queues
    return made


# -- pulls: store/reader.py ------------------------------------------------------------------------

def ranges_of(data, Py_ssize_t count_max, int64_t bytes_max, int64_t oldest):
    """Return the ranges of the log that queue entries name, and how far the entries were read.

    The result is (ranges, records, bytes, entries examined, whether some records are gone).
    """
    cdef Held held = Held(data)
    cdef const uint8_t* entry = <const uint8_t*>held.view.buf
    cdef Py_ssize_t left = held.view.len // ENTRY_BYTES
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t examined = 0
    cdef int64_t total = 0
    cdef int64_t start = -1
    cdef int64_t end = -1
    cdef int64_t position
    cdef int32_t size
    cdef bint removed = False
    ranges = []
    while left > 0:
        position = <int64_t>get64(entry)
        size = <int32_t>get32(entry + 8)
        if count and (count >= count_max or total + size > bytes_max):
            break
        examined += 1
        entry += ENTRY_BYTES
        left -= 1
        if size == 0x7FFFFFFF or size <= 0:
            continue
        if position < oldest:
            removed = True
            continue
        if position != end:
            if end > start:
                ranges.append((start, end - start))
            start = position
        end = position + size
        count += 1
        total += size
    if end > start:
        ranges.append((start, end - start))
    return ranges, count, total, examined, removed


def count_right(
    data, view, int64_t base, int64_t end, bytes topic not None, int32_t queue_id, int64_t offset
):
    """Return how many queue entries lead to the records that they should: `intact.count_right`."""
    cdef Held held = Held(data)
    cdef Held seen = Held(view)
    cdef const uint8_t* entry = <const uint8_t*>held.view.buf
    cdef const uint8_t* record
    cdef const char* name = PyBytes_AS_STRING(topic)
    cdef int64_t name_bytes = PyBytes_GET_SIZE(topic)
    cdef Py_ssize_t left = held.view.len // ENTRY_BYTES
    cdef Py_ssize_t count = 0
    cdef int64_t limit = min(<int64_t>seen.view.len, end - base)
    cdef int64_t position, at, topic_at, size, body
    cdef uint32_t magic, flag
    while count < left:
        position = <int64_t>get64(entry)
        size = <int32_t>get32(entry + 8)
        if size != 0x7FFFFFFF:
            at = position - base
            if size < 91 or at < 0 or at > limit - size:
                break
            record = <const uint8_t*>seen.view.buf + at
            magic, flag = get32(record + 4), get32(record + 36)
            if (
                <int32_t>get32(record) != size
                or <int32_t>get32(record + 12) != queue_id
                or <int64_t>get64(record + 20) != offset + count
                or <int64_t>get64(record + 28) != position
                or (magic != 0xDAA320A7u and magic != 0xDAA320ABu)
            ):
                break
            topic_at = 84 + (12 if flag & 0x10 else 0) + (12 if flag & 0x20 else 0)
            if topic_at + 4 > size:
                break
            body = <int32_t>get32(record + topic_at)
            topic_at += 4 + body + (1 if magic == 0xDAA320A7u else 2)
            if body < 0 or topic_at + name_bytes + 2 > size:
                break
            if magic == 0xDAA320A7u:
                if record[topic_at - 1] != name_bytes:
                    break
            elif (record[topic_at - 2] << 8 | record[topic_at - 1]) != name_bytes:
                break
            if memcmp(record + topic_at, name, name_bytes):
                break
        entry += ENTRY_BYTES
        count += 1
    return count


# -- messages of a consumer: client/consume/messages.py --------------------------------------------

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset

cdef extern from "Python.h":
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member
    object PyType_GenericAlloc(PyTypeObject* kind, Py_ssize_t items)
    void PyObject_GC_UnTrack(void* message)

cdef enum:
    MESSAGE_SLOTS = 13
    NOT_PLAIN = 0x31  # compressed, IPv6 hosts

cdef struct Value:
    const uint8_t* at
    Py_ssize_t size


cdef inline void set_slot(object message, Py_ssize_t offset, object value) noexcept:
    """Set a slot that is empty."""
    Py_INCREF(value)
    (<PyObject**>(<char*>(<PyObject*>message) + offset))[0] = <PyObject*>value


cdef inline object text_of(const Value* value):
    if value.at == NULL:
        return None
    return PyUnicode_DecodeUTF8(<const char*>value.at, value.size, "replace")


cdef bint find_values(
    const uint8_t* at, Py_ssize_t size, Value* key, Value* tag
) noexcept nogil:
    """Find key and tag of raw properties; return whether there is a unique id. The last counts."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    cdef const uint8_t* mark
    cdef bint unique = False
    key.at = tag.at = NULL
    while at < end:
        stop = <const uint8_t*>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        mark = <const uint8_t*>memchr(at, 1, stop - at)
        if mark != NULL and mark + 1 < stop:
            if mark - at == 13:
                if memcmp(at, b"__SHARDINGKEY", 13) == 0:
                    key.at, key.size = mark + 1, stop - mark - 1
            elif mark - at == 8:
                if memcmp(at, b"UNIQ_KEY", 8) == 0:
                    unique = True
            elif mark - at == 4:
                if memcmp(at, b"TAGS", 4) == 0:
                    tag.at, tag.size = mark + 1, stop - mark - 1
        at = stop + 1
    return unique


cdef class Messages:
    """Makes the messages of pull answers: `_plain`. Their slots are filled without their class."""

    cdef object kind
    cdef object library
    cdef Py_ssize_t slots[MESSAGE_SLOTS]

    def __init__(self, type kind not None, tuple names not None, library):
        """`names` are the slots of the class `kind`, in the order of `_fill`."""
        if len(names) != MESSAGE_SLOTS:
            raise ValueError(f"a message has {MESSAGE_SLOTS} slots, not {len(names)}")
        from types import MemberDescriptorType

        self.kind = kind
        self.library = library
        for index, name in enumerate(names):
            slot = getattr(kind, name)
            if type(slot) is not MemberDescriptorType:
                raise ValueError(f"{name} is no slot")
            self.slots[index] = (<PyMemberDescrObject*><PyObject*>slot).d_member.offset

    def read(self, bytes data not None, Py_ssize_t at, list found not None, queue_of, fencing):
        """Add the plain messages from an index on; return the index of the first other record."""
        cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t stop = PyBytes_GET_SIZE(data)
        cdef const uint8_t* p
        cdef int64_t size, body_bytes
        cdef Py_ssize_t topic_bytes, gap, properties
        cdef const uint8_t* topic
        cdef const uint8_t* topic_before = NULL
        cdef Py_ssize_t topic_bytes_before = -1
        cdef int32_t queue_id, queue_before = -1
        cdef Value key, tag
        cdef object queue = None, name = None
        if at < 0:
            raise ValueError("an index is not negative")
        while stop - at >= RECORD_MIN:
            p = base + at
            size = <int32_t>get32(p)
            body_bytes = <int32_t>get32(p + RECORD_HEAD - 4)
            if (
                size < RECORD_MIN or size > stop - at
                or <int32_t>get32(p + 4) != MAGIC_V1
                or get32(p + 36) & NOT_PLAIN
                or body_bytes <= 0 or body_bytes > size - RECORD_MIN
            ):
                return at
            topic = p + RECORD_HEAD + body_bytes + 1
            topic_bytes = topic[-1]
            gap = RECORD_HEAD + body_bytes + topic_bytes + 3
            if gap > size:
                return at
            properties = (topic[topic_bytes] << 8) | topic[topic_bytes + 1]
            if properties != size - gap or properties > PROPERTIES_MAX:
                return at
            if not find_values(p + gap, properties, &key, &tag):
                return at
            if body_crc(p + RECORD_HEAD, body_bytes, self.library) != get32(p + 8):
                return at
            queue_id = <int32_t>get32(p + 12)
            if (
                queue_id != queue_before or topic_bytes != topic_bytes_before
                or memcmp(topic, topic_before, topic_bytes) != 0
            ):
                queue = queue_of(
                    PyBytes_FromStringAndSize(<const char*>topic, topic_bytes), queue_id
                )
                name = queue.topic
                queue_before = queue_id
                topic_before, topic_bytes_before = topic, topic_bytes
            found.append(self._fill(p, body_bytes, p + gap, properties, queue, name, fencing,
                                    text_of(&key), text_of(&tag)))
            at += size
        return at

    cdef object _fill(
        self, const uint8_t* p, Py_ssize_t body_bytes, const uint8_t* raw, Py_ssize_t properties,
        object queue, object name, object fencing, object key, object tag
    ):
        cdef object message = PyType_GenericAlloc(<PyTypeObject*><PyObject*>self.kind, 0)
        set_slot(message, self.slots[0], name)
        set_slot(message, self.slots[1], queue)
        set_slot(message, self.slots[2], <int64_t>get64(p + 20))
        set_slot(
            message, self.slots[3],
            PyBytes_FromStringAndSize(<const char*>(p + RECORD_HEAD), body_bytes),
        )
        set_slot(message, self.slots[4], <int64_t>get64(p + 40))
        set_slot(message, self.slots[5], <int64_t>get64(p + 56))
        set_slot(message, self.slots[6], <int32_t>get32(p + 72))
        set_slot(message, self.slots[7], <int64_t>get64(p + 28))
        set_slot(message, self.slots[8], <int32_t>get32(p + 16))
        set_slot(message, self.slots[9], fencing)
        set_slot(
            message, self.slots[10], PyBytes_FromStringAndSize(<const char*>raw, properties)
        )
        set_slot(message, self.slots[11], key)
        set_slot(message, self.slots[12], tag)
        # A message cannot change and refers to nothing that refers to it: no collection visits it.
        PyObject_GC_UnTrack(<void*>message)
        return message
