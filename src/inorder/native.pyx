# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled module: sends, batches, index keys, pull replies, rows of a sink, what is signed.

Every function has a twin in Python, named beside it, which gives the same bytes more slowly. Input
that is not plain is left to the twin: the function then returns None and has changed nothing.
Lengths come from the wire, so each is compared with the bytes left before a pointer moves by it.
What is compiled, and why: decision 37.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

INTERFACE = 7
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
        ) or (name_bytes == 8 and memcmp(name, b"TRAN_MSG", 8) == 0):
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


def pack_items(list bodies not None, list raws not None, list flags not None, bytes head not None,
               int64_t first):
    """Return the body of a request with several messages: `pack_items_pure` of the producer.

    Each has a body, raw properties and a flag; `head` are the properties that number it, up to its
    number. None if some of it is not plain.
    """
    cdef Py_ssize_t count = len(bodies)
    cdef Py_ssize_t head_bytes = PyBytes_GET_SIZE(head)
    cdef Py_ssize_t index, body_bytes, properties
    cdef int64_t total = 0
    cdef Number number
    cdef uint8_t* out
    if len(raws) != count or len(flags) != count or first < 0:
        raise ValueError("as many properties and flags as bodies, numbered from 0 on")
    for index in range(count):
        body, raw = bodies[index], raws[index]
        if type(body) is not bytes or type(raw) is not bytes:
            return None
        properties = (
            PyBytes_GET_SIZE(raw) + head_bytes + write_number(&number, first + index) + 1
        )
        if properties > PROPERTIES_MAX:
            return None
        total += ITEM_HEAD + 2 + PyBytes_GET_SIZE(body) + properties
    if total > 0x7FFFFFFF:
        return None
    cdef bytes made = PyBytes_FromStringAndSize(NULL, total)
    cdef int32_t flag
    cdef const uint8_t* end = <const uint8_t*>PyBytes_AS_STRING(made) + total
    out = <uint8_t*>PyBytes_AS_STRING(made)
    for index in range(count):
        flag = flags[index]
        if len(bodies) != count or len(raws) != count or len(flags) != count:
            return None  # the lists have changed meanwhile
        body, raw = bodies[index], raws[index]
        if type(body) is not bytes or type(raw) is not bytes:
            return None
        body_bytes = PyBytes_GET_SIZE(body)
        properties = (
            PyBytes_GET_SIZE(raw) + head_bytes + write_number(&number, first + index) + 1
        )
        if end - out < ITEM_HEAD + 2 + body_bytes + properties:
            return None  # the lists have changed meanwhile
        put32(out, <uint32_t>(ITEM_HEAD + 2 + body_bytes + properties))
        put32(out + 4, 0)
        put32(out + 8, 0)
        put32(out + 12, <uint32_t>flag)
        put32(out + 16, <uint32_t>body_bytes)
        out = put_bytes(out + ITEM_HEAD, body)
        out[0], out[1] = (properties >> 8) & 0xFF, properties & 0xFF
        out = put_bytes(out + 2, raw)
        out = put_bytes(out, head)
        out = put_number(out, &number)
        out[0] = 2
        out += 1
    return made if out == end else None


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
    cdef Py_ssize_t left = held.view.len // ENTRY_BYTES
    cdef Py_ssize_t count = 0
    cdef int64_t limit = min(<int64_t>seen.view.len, end - base)
    cdef int64_t position, at, size
    while count < left:
        position = <int64_t>get64(entry)
        size = <int32_t>get32(entry + 8)
        if size != 0x7FFFFFFF:
            at = position - base
            if size < 91 or at < 0 or at > limit - size:
                break
            if not is_record(
                <const uint8_t*>seen.view.buf + at, size, queue_id, offset + count, position, topic
            ):
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


# -- a producer's sends: client/send/queues.py, client/send/producer.py, sync/producer.py ----------

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from posix.time cimport CLOCK_REALTIME, clock_gettime, clockid_t, timespec

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    unsigned long PyThread_get_thread_ident()
    bint PyObject_GC_IsTracked(object it)
    void PyObject_GC_Track(void* it)
    void Py_XDECREF(PyObject* it)

cdef enum:
    SEND_TOPIC, SEND_KEY, SEND_PART, SEND_CHOICE, SEND_DEADLINE, SEND_WAITER, SEND_QUEUE
    SEND_SENDER, SEND_BY_KEY, SEND_PLACED, SEND_SIZE, SEND_JOINS, SEND_PATIENT, SEND_STATE
    SEND_SEQUENCE, SEND_LAST, SEND_TOGETHER, SEND_TRIES, SEND_WRITTEN, SEND_OVER
    SEND_NAMED_SLOTS
    SEND_SLOTS_MAX = 40

cdef enum:
    PART_BODY, PART_RAW, PART_IDS, PART_BORN, PART_TOGETHER, PART_FLAG, PART_SYS_FLAG
    PART_NAMED_SLOTS

cdef enum:
    RECEIPT_ID, RECEIPT_QUEUE, RECEIPT_OFFSET, RECEIPT_STATUS, RECEIPT_HANDLE
    RECEIPT_NAMED_SLOTS

cdef enum:
    FUTURE_STATE, FUTURE_RESULT, FUTURE_LOCK, FUTURE_TOPIC, FUTURE_KEY
    FUTURE_NAMED_SLOTS

cdef enum:
    UNSENT = 0
    IN_FLIGHT = 1
    DONE = 3
    KEY_MAX = 255
    ID_MAX = 60
    MARKS_MAX = 48  # what stands around the id and the key

cdef int64_t forks = 0


def forked():
    """Note that this is a child of the process that made the makers: they make nothing here."""
    global forks
    forks += 1


def track(it):
    """Let the collector visit an object that the module has made."""
    if not PyObject_GC_IsTracked(it):
        PyObject_GC_Track(<void*>it)


cdef class Slots:
    """Where the slots of a Python class lie: those that the module uses, then all others."""

    cdef object kind
    cdef Py_ssize_t at[SEND_SLOTS_MAX]
    cdef Py_ssize_t count

    def __init__(self, type kind not None, tuple names not None, Py_ssize_t named):
        from types import MemberDescriptorType

        if not named <= len(names) <= SEND_SLOTS_MAX:
            raise ValueError(f"{kind} has {len(names)} slots, not {named} or some more")
        self.kind, self.count = kind, len(names)
        for index, name in enumerate(names):
            slot = getattr(kind, name)
            if type(slot) is not MemberDescriptorType:
                raise ValueError(f"{name} is no slot")
            self.at[index] = (<PyMemberDescrObject*><PyObject*>slot).d_member.offset

    cdef inline PyObject** slot(self, PyObject* it, Py_ssize_t index) noexcept:
        return <PyObject**>(<char*>it + self.at[index])

    cdef inline PyObject* get(self, PyObject* it, Py_ssize_t index) noexcept:
        return self.slot(it, index)[0]

    cdef inline void put(self, PyObject* it, Py_ssize_t index, object value) noexcept:
        cdef PyObject** at = self.slot(it, index)
        cdef PyObject* before = at[0]
        Py_INCREF(value)
        at[0] = <PyObject*>value
        Py_XDECREF(before)

    cdef object like(self, object pattern):
        """Return a new object of the class whose slots have the same values."""
        cdef object made = PyType_GenericAlloc(<PyTypeObject*><PyObject*>self.kind, 0)
        self.fill(made, pattern)
        return made

    cdef void fill(self, object made, object pattern) noexcept:
        cdef Py_ssize_t index
        cdef PyObject* value
        for index in range(self.count):
            value = self.get(<PyObject*>pattern, index)
            if value != NULL:
                Py_INCREF(<object>value)
                self.slot(<PyObject*>made, index)[0] = value
        PyObject_GC_UnTrack(<void*>made)


cdef class Sending:
    """The sends of producers, many at a time.

    Each method does for the plain ones at the front what the Python beside its call does for any,
    and leaves the rest to that.
    """

    cdef Slots send, part, receipt, future
    cdef object send_kind, part_kind, receipt_kind, future_kind, pending, finished
    cdef object popleft

    def __init__(self, send not None, part not None, receipt not None):
        """Each is a class and the names of its slots."""
        from collections import deque

        self.send = Slots(*send, SEND_NAMED_SLOTS)
        self.part = Slots(*part, PART_NAMED_SLOTS)
        self.receipt = Slots(*receipt, RECEIPT_NAMED_SLOTS)
        self.send_kind, self.part_kind = send[0], part[0]
        self.receipt_kind = receipt[0]
        self.popleft = deque.popleft

    def use_futures(self, type kind not None, tuple names not None, pending, finished):
        """Set the outcomes of these futures without a call, while nobody waits for them."""
        self.future = Slots(kind, names, FUTURE_NAMED_SLOTS)
        self.pending, self.finished = pending, finished
        self.future_kind = kind

    cdef inline object field(self, object send, Py_ssize_t index):
        cdef PyObject* found = self.send.get(<PyObject*>send, index)
        if found == NULL:
            raise AttributeError("a send has an empty slot")
        return <object>found

    cdef inline object part_field(self, object part, Py_ssize_t index):
        cdef PyObject* found = self.part.get(<PyObject*>part, index)
        if found == NULL:
            raise AttributeError("the content of a send has an empty slot")
        return <object>found

    cdef inline int check(self, object send) except -1:
        if type(send) is not self.send_kind:
            raise TypeError(f"{type(send)} is no send")
        return 0

    cdef inline bint is_done(self, object waiter) except -1:
        if type(waiter) is self.future_kind:
            return self.future.get(<PyObject*>waiter, FUTURE_STATE) != <PyObject*>self.pending
        return waiter.done()

    def drain(self, messages, Py_ssize_t most):
        """Take the first of a deque, as many as there are up to `most`."""
        cdef Py_ssize_t count = min(<Py_ssize_t>len(messages), most)
        cdef list taken = []
        while count > 0:
            taken.append(self.popleft(messages))
            count -= 1
        return taken

    def wanted(self, list sends not None):
        """Return the sends that callers still wait for; the same list if that are all."""
        cdef Py_ssize_t index
        for index in range(PyList_GET_SIZE(sends)):
            send = sends[index]
            self.check(send)
            if self.is_done(self.field(send, SEND_WAITER)):
                return [one for one in sends if not one.waiter.done()]
        return sends

    def place(self, list sends not None, Py_ssize_t at, name, dict by_key not None, placed,
              dict groups not None, due):
        """Group the keyed sends from an index on by the queues of their keys.

        Return the index of the first send that is left, and the earliest deadline.
        """
        cdef Py_ssize_t count = len(sends)
        cdef PyObject* queue
        cdef PyObject* group
        cdef PyObject* here
        if at < 0:
            raise ValueError("an index is not negative")
        while at < count:
            send = sends[at]
            self.check(send)
            key = self.field(send, SEND_KEY)
            topic = self.field(send, SEND_TOPIC)
            if key is None or self.field(send, SEND_CHOICE) is not None:
                break
            if topic is not name and topic != name:
                break
            queue = PyDict_GetItem(by_key, key)
            if queue == NULL:
                break
            here = <PyObject*>send
            self.send.put(here, SEND_BY_KEY, True)
            self.send.put(here, SEND_PLACED, placed)
            self.send.put(here, SEND_QUEUE, <object>queue)
            deadline = self.field(send, SEND_DEADLINE)
            if deadline < due:
                due = deadline
            group = PyDict_GetItem(groups, <object>queue)
            if group == NULL:
                groups[<object>queue] = [send]
            else:
                (<list>group).append(send)
            at += 1
        return at, due

    def take_alike(self, waiting, list taken not None, Py_ssize_t most, int64_t left, int64_t tail):
        """Take the waiting sends that are like the last one taken; return what is left of `left`.

        Such a send travels under the same flag, placed in the same way, and it still has a caller.
        """
        cdef Py_ssize_t index, count = len(waiting)
        cdef int64_t size
        if PyList_GET_SIZE(taken) == 0:
            raise ValueError("like which one?")
        last = taken[PyList_GET_SIZE(taken) - 1]
        if type(last) is not self.send_kind:
            return left
        placed = self.field(last, SEND_PLACED)
        content = self.field(last, SEND_PART)
        if type(content) is not self.part_kind:
            return left
        sys_flag = self.part_field(content, PART_SYS_FLAG)
        while count > 0 and PyList_GET_SIZE(taken) < most:
            send = waiting[0]
            if type(send) is not self.send_kind:
                break
            part = self.field(send, SEND_PART)
            if type(part) is not self.part_kind:
                break
            size = self.part_field(part, PART_TOGETHER)
            if (
                self.field(send, SEND_STATE) != UNSENT
                or self.field(send, SEND_JOINS) is not True
                or self.part_field(part, PART_SYS_FLAG) != sys_flag
                or self.field(send, SEND_PLACED) != placed
                or size > left
                or self.is_done(self.field(send, SEND_WAITER))
            ):
                break
            self.popleft(waiting)
            count -= 1
            left -= size
            tail += 1
            number = tail
            self.send.put(<PyObject*>send, SEND_SEQUENCE, number)
            self.send.put(<PyObject*>send, SEND_LAST, number)
            self.send.put(<PyObject*>send, SEND_STATE, IN_FLIGHT)
            taken.append(send)
        return left

    def together(self, list sends not None):
        """Note that sends travel in one request; return how many of them were plain."""
        cdef Py_ssize_t index = 0
        for send in sends:
            if type(send) is not self.send_kind:
                break
            self.send.put(<PyObject*>send, SEND_TOGETHER, True)
            index += 1
        return index

    def pack(self, list sends not None, bytes head not None, int64_t first):
        """Return the body of a request: `pack_items` of the sends' contents."""
        cdef list bodies = [], raws = [], flags = []
        for send in sends:
            self.check(send)
            part = self.field(send, SEND_PART)
            if type(part) is not self.part_kind:
                return None
            bodies.append(self.part_field(part, PART_BODY))
            raws.append(self.part_field(part, PART_RAW))
            flags.append(self.part_field(part, PART_FLAG))
        return pack_items(bodies, raws, flags, head, first)

    def written(self, list sends not None, sender, now_ms):
        """Note that sends are written; return how many of them not for the first time."""
        cdef Py_ssize_t again = 0
        cdef PyObject* here
        for send in sends:
            self.check(send)
            here = <PyObject*>send
            tries = self.field(send, SEND_TRIES)
            if tries:
                again += 1
            self.send.put(here, SEND_SENDER, sender)
            self.send.put(here, SEND_WRITTEN, now_ms)
            self.send.put(here, SEND_TRIES, tries + 1)
        return again

    def confirm(self, list sends not None):
        """Note that the sends of a request are stored; return how many of them were plain."""
        cdef Py_ssize_t index = 0
        for send in sends:
            if type(send) is not self.send_kind:
                break
            self.send.put(<PyObject*>send, SEND_STATE, DONE)
            self.send.put(<PyObject*>send, SEND_TOGETHER, False)
            index += 1
        return index

    def trim(self, sent):
        """Remove what is done at the front."""
        cdef Py_ssize_t count = len(sent)
        while count > 0:
            send = sent[0]
            if type(send) is not self.send_kind:
                break
            if self.field(send, SEND_STATE) != DONE:
                break
            self.popleft(sent)
            count -= 1

    def stored(self, list sends not None, queue, offsets not None, status):
        """Give callers their receipts; return how many sends are over by that, and their bytes."""
        cdef Py_ssize_t count = 0
        cdef int64_t size = 0
        cdef Py_ssize_t index
        cdef PyObject* here
        cdef object receipt
        if len(offsets) != len(sends):
            raise ValueError("as many offsets as sends")
        for index in range(PyList_GET_SIZE(sends)):
            send = sends[index]
            self.check(send)
            if self.field(send, SEND_OVER):
                continue
            here = <PyObject*>send
            self.send.put(here, SEND_OVER, True)
            count += 1
            size += <int64_t>self.field(send, SEND_SIZE)
            waiter = self.field(send, SEND_WAITER)
            part = self.field(send, SEND_PART)
            if type(part) is not self.part_kind:
                raise TypeError(f"{type(part)} is no content of a send")
            ids = <tuple?>self.part_field(part, PART_IDS)
            if PyTuple_GET_SIZE(<tuple>ids) != 1:
                raise ValueError("a send of one message")
            receipt = PyType_GenericAlloc(<PyTypeObject*><PyObject*>self.receipt_kind, 0)
            self.receipt.put(<PyObject*>receipt, RECEIPT_ID, (<tuple>ids)[0])
            self.receipt.put(<PyObject*>receipt, RECEIPT_QUEUE, queue)
            self.receipt.put(<PyObject*>receipt, RECEIPT_OFFSET, offsets[index])
            self.receipt.put(<PyObject*>receipt, RECEIPT_STATUS, status)
            self.receipt.put(<PyObject*>receipt, RECEIPT_HANDLE, None)
            # It cannot change, and refers to nothing that refers to it.
            PyObject_GC_UnTrack(<void*>receipt)
            if type(waiter) is self.future_kind:
                here = <PyObject*>waiter
                # No other code runs between these lines: a caller has the lock made, or sees this.
                if (
                    self.future.get(here, FUTURE_LOCK) == <PyObject*>None
                    and self.future.get(here, FUTURE_STATE) == <PyObject*>self.pending
                ):
                    self.future.put(here, FUTURE_RESULT, receipt)
                    self.future.put(here, FUTURE_STATE, self.finished)
                    continue
            if not waiter.done():
                waiter.set_result(receipt)
        return count, size


cdef inline int64_t number_of(Slots slots, object it, Py_ssize_t index) except? -1:
    cdef PyObject* found = slots.get(<PyObject*>it, index)
    if found == NULL:
        raise AttributeError("an empty slot")
    return <object>found


cdef class Tally:
    """Counts what is in a `Room`, in steps that no other thread interrupts."""

    cdef Slots room_slots, pace_slots
    cdef object room, pace

    def __init__(self, type kind not None, room not None):
        """`kind` is the class that has the slots."""
        self.room, self.pace = room, room.pace
        if not isinstance(room, kind):
            raise TypeError("a room of another class")
        self.room_slots = Slots(kind, ("messages", "bytes", "bytes_max"), 3)
        self.pace_slots = Slots(type(self.pace), ("allowed",), 1)

    def enter(self, int64_t messages, int64_t size):
        """Take room in one step; False if there is none."""
        if self.is_full():
            return False
        self.count(messages, size)
        return True

    def add(self, int64_t messages, int64_t size):
        """Count messages, full or not; in one step."""
        self.count(messages, size)

    cdef bint is_full(self) except -1:
        return (
            number_of(self.room_slots, self.room, 0) >= number_of(self.pace_slots, self.pace, 0)
            or number_of(self.room_slots, self.room, 1)
            >= number_of(self.room_slots, self.room, 2)
        )

    cdef int count(self, int64_t messages, int64_t size) except -1:
        cdef object all_messages = number_of(self.room_slots, self.room, 0) + messages
        cdef object all_bytes = number_of(self.room_slots, self.room, 1) + size
        self.room_slots.put(<PyObject*>self.room, 0, all_messages)
        self.room_slots.put(<PyObject*>self.room, 1, all_bytes)
        return 0


cdef class Maker:
    """Makes the plain messages of a blocking producer, in the threads of its callers."""

    cdef Sending sending
    cdef Tally tally
    cdef object future, send, part  # patterns
    cdef object append, prefix_at, counter, check_topic, topic
    cdef object future_new
    cdef Py_ssize_t body_max, prefix_size
    cdef int64_t timeout_ms, item_bytes, forks, latest_ms
    cdef unsigned long loop_ident
    cdef clockid_t clock
    cdef char prefix[ID_MAX]

    def __init__(self, Sending sending not None, patterns not None, Tally tally not None, append,
                 ids not None, check_topic, numbers not None):
        """`patterns`: a future, a send, its content.

        `numbers`: the largest plain body, the time of a send, what a message takes beside body and
        properties, the loop's thread, the clock of deadlines.
        """
        self.sending = sending
        self.future, self.send, self.part = patterns
        kinds = (sending.future_kind, sending.send_kind, sending.part_kind)
        if tuple(map(type, patterns)) != kinds:
            raise TypeError("patterns of other classes")
        self.tally, self.append, self.check_topic = tally, append, check_topic
        self.prefix_at, self.counter = ids
        (
            self.body_max, self.timeout_ms, self.item_bytes, self.loop_ident, self.clock
        ) = numbers
        self.forks = forks
        self.latest_ms = -1
        self.future_new = sending.future_kind.__new__

    cdef int renew(self, int64_t now_ms) except -1:
        """Learn what the ids of this millisecond begin with."""
        cdef bytes text = self.prefix_at(now_ms).encode("ascii")
        if PyBytes_GET_SIZE(text) > ID_MAX - 4:
            raise ValueError("an id is not that long")
        self.prefix_size = PyBytes_GET_SIZE(text)
        memcpy(self.prefix, PyBytes_AS_STRING(text), self.prefix_size)
        self.latest_ms = now_ms
        return 0

    def make(self, topic, body, key):
        """Return a message that has its room and its place in the outbox.

        None if it is not plain, or there is no room, or this thread may not send: nothing has
        changed then, and the Python of the caller knows what is to be done.
        """
        cdef Py_ssize_t size, key_size = 0, index
        cdef const uint8_t* letters = NULL
        cdef uint8_t letter
        cdef int64_t now_ms
        cdef uint32_t number
        cdef timespec now
        cdef char id_[ID_MAX]
        cdef uint8_t* out
        if self.forks != forks or PyThread_get_thread_ident() == self.loop_ident:
            return None
        if type(body) is not bytes or type(topic) is not str:
            return None
        size = PyBytes_GET_SIZE(body)
        if size == 0 or size > self.body_max:
            return None
        if key is not None:
            if type(key) is not str or not PyUnicode_IS_ASCII(key):
                return None
            key_size = PyUnicode_GET_LENGTH(key)
            if key_size == 0 or key_size > KEY_MAX:
                return None
            letters = <const uint8_t*>PyUnicode_DATA(key)
            for index in range(key_size):
                letter = letters[index]
                if letter < 0x20 or letter > 0x7e:
                    return None
        if self.tally.is_full():
            return None
        if topic is not self.topic:
            try:
                self.check_topic(topic)
            except Exception:
                return None  # the caller makes the error
            self.topic = topic
        clock_gettime(CLOCK_REALTIME, &now)
        now_ms = <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000
        if now_ms != self.latest_ms:
            self.renew(now_ms)
        number = <uint32_t>(next(self.counter) & 0xFFFF)
        memcpy(id_, self.prefix, self.prefix_size)
        for index in range(4):
            letter = (number >> (12 - 4 * index)) & 15
            id_[self.prefix_size + index] = letter + (48 if letter < 10 else 55)
        cdef Py_ssize_t id_size = self.prefix_size + 4
        cdef bytes raw = PyBytes_FromStringAndSize(
            NULL, 9 + id_size + 11 + (14 + key_size + 1 if key_size else 0)
        )
        out = <uint8_t*>PyBytes_AS_STRING(raw)
        memcpy(out, b"UNIQ_KEY\x01", 9)
        memcpy(out + 9, id_, id_size)
        out += 9 + id_size
        memcpy(out, b"\x02WAIT\x01true\x02", 11)
        if key_size:
            out += 11
            memcpy(out, b"__SHARDINGKEY\x01", 14)
            memcpy(out + 14, letters, key_size)
            out[14 + key_size] = 2
        ids = (PyUnicode_DecodeASCII(id_, id_size, NULL),)
        PyObject_GC_UnTrack(<void*>ids)
        cdef Sending sending = self.sending
        cdef object part = sending.part.like(self.part)
        cdef PyObject* here = <PyObject*>part
        sending.part.put(here, PART_BODY, body)
        sending.part.put(here, PART_RAW, raw)
        sending.part.put(here, PART_IDS, ids)
        sending.part.put(here, PART_BORN, now_ms)
        sending.part.put(
            here, PART_TOGETHER, size + PyBytes_GET_SIZE(raw) + self.item_bytes
        )
        cdef object future = self.future_new(sending.future_kind)
        sending.future.fill(future, self.future)
        sending.future.put(<PyObject*>future, FUTURE_TOPIC, topic)
        sending.future.put(<PyObject*>future, FUTURE_KEY, key)
        clock_gettime(self.clock, &now)
        now_ms = <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000
        cdef object send = sending.send.like(self.send)
        here = <PyObject*>send
        sending.send.put(here, SEND_TOPIC, topic)
        sending.send.put(here, SEND_KEY, key)
        sending.send.put(here, SEND_PART, part)
        sending.send.put(here, SEND_DEADLINE, now_ms + self.timeout_ms)
        sending.send.put(here, SEND_WAITER, future)
        sending.send.put(here, SEND_SIZE, size)
        if self.tally.is_full():
            return None  # another thread was faster
        self.tally.count(1, size)
        try:
            self.append(send)
        except BaseException:
            self.tally.count(-1, -size)
            raise
        return send


# -- single sends: broker/sends/service.py ---------------------------------------------------------

from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Realloc
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII

cdef enum:
    RUN_MAX = 512
    RECENT = 16  # a power of two
    KEYS_MAX = 64
    UNIQUE_MAX = 255
    BINARY_HEAD = 21
    # The fields of a send; the first are the letters of the codes 310 and 320 in their order.
    GROUP = 0
    TOPIC = 1
    TEMPLATE = 2
    TEMPLATE_QUEUES = 3
    QUEUE = 4
    SYS_FLAG = 5
    BORN = 6
    FLAG = 7
    PROPERTIES = 8
    TIMES = 9
    UNIT = 10
    TIMES_MAX = 11
    BATCH = 12
    BROKER = 13
    MAP = 14
    DIGEST = 15
    CHOSEN = 16
    ACCESS_KEY = 17
    SIGNATURE = 18
    CHANNEL = 19
    FIELDS = 20
    # Those whose values are numbers, also without quotes.
    NUMERIC = 0xAF8
    NEEDED_JSON = 0xF2  # TOPIC, QUEUE, SYS_FLAG, BORN, FLAG
    NEEDED_BINARY = 0xFF
    # Compressed (bits 0, 8 to 10), several tags; the broker sets the bits of hosts itself.
    PLAIN_SYS_FLAGS = 0x733

cdef struct Send:
    const uint8_t* topic
    Py_ssize_t topic_size
    const uint8_t* properties
    Py_ssize_t properties_size
    bint escaped
    const uint8_t* map
    Py_ssize_t map_size
    const uint8_t* digest
    Py_ssize_t digest_size
    bint chosen
    int64_t numbers[FIELDS]
    int64_t opaque
    int64_t flag
    bint long_names
    bint binary
    uint32_t seen

cdef struct Entry:
    int64_t position
    int64_t tag_hash
    int32_t size
    int32_t next


cdef bint read_signed(
    const uint8_t* p, Py_ssize_t size, int64_t most, int64_t* number
) noexcept nogil:
    """Read a decimal number between -most - 1 and most; False if it is anything else."""
    cdef bint negative = size > 0 and p[0] == c"-"
    if not read_number(p + negative, size - negative, number):
        return False
    if negative:
        number[0] = -number[0]
        return number[0] < 0 and number[0] >= -most - 1
    return number[0] <= most


cdef int long_field(const uint8_t* name, Py_ssize_t size) noexcept nogil:
    """Return the field of a long name, -1 if there is none."""
    if size == 13 and memcmp(name, b"producerGroup", 13) == 0:
        return GROUP
    if size == 5 and memcmp(name, b"topic", 5) == 0:
        return TOPIC
    if size == 12 and memcmp(name, b"defaultTopic", 12) == 0:
        return TEMPLATE
    if size == 21 and memcmp(name, b"defaultTopicQueueNums", 21) == 0:
        return TEMPLATE_QUEUES
    if size == 7 and memcmp(name, b"queueId", 7) == 0:
        return QUEUE
    if size == 7 and memcmp(name, b"sysFlag", 7) == 0:
        return SYS_FLAG
    if size == 13 and memcmp(name, b"bornTimestamp", 13) == 0:
        return BORN
    if size == 4 and memcmp(name, b"flag", 4) == 0:
        return FLAG
    if size == 10 and memcmp(name, b"properties", 10) == 0:
        return PROPERTIES
    if size == 14 and memcmp(name, b"reconsumeTimes", 14) == 0:
        return TIMES
    if size == 8 and memcmp(name, b"unitMode", 8) == 0:
        return UNIT
    if size == 17 and memcmp(name, b"maxReconsumeTimes", 17) == 0:
        return TIMES_MAX
    if size == 5 and memcmp(name, b"batch", 5) == 0:
        return BATCH
    if size == 5 and memcmp(name, b"bname", 5) == 0:
        return BROKER
    # RocketMQ's C++ client signs its requests.
    if size == 9 and memcmp(name, b"AccessKey", 9) == 0:
        return ACCESS_KEY
    if size == 9 and memcmp(name, b"Signature", 9) == 0:
        return SIGNATURE
    if size == 10 and memcmp(name, b"OnsChannel", 10) == 0:
        return CHANNEL
    return -1


cdef bint take_field(
    Send* send, const uint8_t* name, Py_ssize_t name_size, const uint8_t* value, Py_ssize_t size,
    bint quoted
) noexcept nogil:
    """Take a field; False if it is not known, there twice, or its value is not plain."""
    cdef int field = -1
    if name_size == 2 and name[0] == c"m":
        field = (
            MAP if name[1] == c"v" else DIGEST if name[1] == c"d"
            else CHOSEN if name[1] == c"q" else -1
        )
    elif send.long_names:
        field = long_field(name, name_size)
    elif name_size == 1 and c"a" <= name[0] <= c"n":
        field = name[0] - c"a"
    if field < 0 or send.seen >> field & 1 or not (quoted or NUMERIC >> field & 1):
        return False
    send.seen |= <uint32_t>1 << field
    if field == TOPIC:
        send.topic, send.topic_size = value, size
    elif field == PROPERTIES:
        send.properties, send.properties_size = value, size
    elif field == BORN:
        return read_signed(value, size, 0x7FFFFFFFFFFFFFFF, &send.numbers[field])
    elif (
        field == TEMPLATE_QUEUES or field == QUEUE or field == SYS_FLAG or field == FLAG
        or field == TIMES or field == TIMES_MAX
    ):
        return read_signed(value, size, 0x7FFFFFFF, &send.numbers[field])
    elif field == BATCH or (field == UNIT and send.binary):
        return (size == 5 and memcmp(value, b"false", 5) == 0) or (
            size == 1 and value[0] == c"0" and not send.binary
        )
    elif field == MAP:
        send.map, send.map_size = value, size
        return size > 0
    elif field == DIGEST:
        send.digest, send.digest_size = value, size
    elif field == CHOSEN:
        send.chosen = size > 0
    return True


cdef const uint8_t* string_end(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return where a JSON string without escapes ends; NULL if it is anything else."""
    while p < end and p[0] != c'"':
        if p[0] == c"\\" or p[0] < 32:
            return NULL
        p += 1
    return p if p < end else NULL


cdef const uint8_t* escaped_end(
    const uint8_t* p, const uint8_t* end, bint* escaped
) noexcept nogil:
    """Return where a JSON string ends; `unescape` looks at what is in it."""
    while p < end and p[0] != c'"':
        if p[0] < 32:
            return NULL
        if p[0] == c"\\":
            escaped[0] = True
            p += 1
        p += 1
    return p if p < end else NULL


cdef inline int hex_digit(uint8_t letter) noexcept nogil:
    if c"0" <= letter <= c"9":
        return letter - c"0"
    letter |= 0x20
    return letter - c"a" + 10 if c"a" <= letter <= c"f" else -1


cdef Py_ssize_t unescape(const uint8_t* p, Py_ssize_t size, uint8_t* out) noexcept nogil:
    """Write the text of a JSON string, all ASCII; return its size, -1 if it is not plain."""
    cdef const uint8_t* end = p + size
    cdef uint8_t* start = out
    cdef int high, low
    while p < end:
        if p[0] != c"\\":
            out[0] = p[0]
            p += 1
        elif end - p >= 6 and p[1] == c"u":
            high, low = hex_digit(p[4]), hex_digit(p[5])
            if p[2] != c"0" or p[3] != c"0" or high < 0 or high > 7 or low < 0 or high + low == 0:
                return -1
            out[0] = high << 4 | low
            p += 6
        elif end - p >= 2 and (p[1] == c"\\" or p[1] == c'"' or p[1] == c"/"):
            out[0] = p[1]
            p += 2
        else:
            return -1
        out += 1
    return out - start


cdef bint read_json(const uint8_t* p, Py_ssize_t size, Send* send) noexcept nogil:
    """Read the header of a send as Java and inorder write it; False if it is not plain."""
    cdef const uint8_t* end = p + size
    cdef const uint8_t* name
    cdef const uint8_t* stop
    cdef const uint8_t* value
    cdef Py_ssize_t name_size
    cdef bint inside = False  # of extFields
    cdef bint had_fields = False, had_opaque = False, had_flag = False
    cdef bint escaped
    if not is_ascii(p, size):
        return False
    if size > 12 and (
        memcmp(p, b'{"code":310,', 12) == 0 or memcmp(p, b'{"code":320,', 12) == 0
    ):
        p += 12
        send.long_names = False
    elif size > 11 and memcmp(p, b'{"code":10,', 11) == 0:
        p += 11
        send.long_names = True
    else:
        return False
    while True:  # at the begin of a name
        if p >= end or p[0] != c'"':
            return False
        name = p + 1
        stop = string_end(name, end)
        if stop == NULL or end - stop < 3 or stop[1] != c":":
            return False
        name_size = stop - name
        value = stop + 2
        if value[0] == c'"':
            value += 1
            escaped = False
            if inside:
                stop = escaped_end(value, end, &escaped)
            else:
                stop = string_end(value, end)
            if stop == NULL:
                return False
            if inside:
                if not take_field(send, name, name_size, value, stop - value, True):
                    return False
                if escaped:
                    if send.properties != value:
                        return False
                    send.escaped = True
            elif not (
                (name_size == 8 and memcmp(name, b"language", 8) == 0)
                or (name_size == 23 and memcmp(name, b"serializeTypeCurrentRPC", 23) == 0)
                or (name_size == 6 and memcmp(name, b"remark", 6) == 0)
            ):
                return False
            p = stop + 1
        elif not inside and value[0] == c"{":
            if had_fields or name_size != 9 or memcmp(name, b"extFields", 9) != 0:
                return False
            had_fields = inside = True
            p = value + 1
            continue
        else:
            stop = value
            while stop < end and (stop[0] == c"-" or c"0" <= stop[0] <= c"9"):
                stop += 1
            if inside:
                if not take_field(send, name, name_size, value, stop - value, False):
                    return False
            elif name_size == 6 and memcmp(name, b"opaque", 6) == 0:
                if had_opaque or not read_signed(value, stop - value, 0x7FFFFFFF, &send.opaque):
                    return False
                had_opaque = True
            elif name_size == 4 and memcmp(name, b"flag", 4) == 0:
                if had_flag or not read_signed(value, stop - value, 0x7FFFFFFF, &send.flag):
                    return False
                had_flag = True
            elif name_size == 7 and memcmp(name, b"version", 7) == 0:
                if not read_signed(value, stop - value, 0x7FFFFFFF, &send.numbers[GROUP]):
                    return False
            else:
                return False
            p = stop
        if inside and p < end and p[0] == c"}":
            inside = False
            p += 1
        if p >= end:
            return False
        if p[0] == c"}":
            break
        if p[0] != c",":
            return False
        p += 1
    if p + 2 == end and p[1] == c"\n":
        end -= 1
    return (
        not inside and p + 1 == end and had_opaque and had_fields
        and (send.seen & NEEDED_JSON) == NEEDED_JSON
    )


cdef bint read_binary(const uint8_t* p, Py_ssize_t size, Send* send) noexcept nogil:
    """Read the header of a send in RocketMQ's own serialization; False if it is not plain."""
    cdef const uint8_t* end = p + size
    cdef const uint8_t* name
    cdef int64_t name_size, value_size
    cdef int code
    if size < BINARY_HEAD or not is_ascii(p + BINARY_HEAD, size - BINARY_HEAD):
        return False
    code = p[0] << 8 | p[1]
    if code != 310 and code != 320 and code != 10:
        return False
    send.long_names = code == 10
    send.opaque, send.flag = <int32_t>get32(p + 5), <int32_t>get32(p + 9)
    if get32(p + 13) != 0 or get32(p + 17) != <uint64_t>(size - BINARY_HEAD):
        return False
    p += BINARY_HEAD
    while p < end:
        if end - p < 6:
            return False
        name_size = p[0] << 8 | p[1]
        name = p + 2
        if name_size > end - name - 4:
            return False
        value_size = get32(name + name_size)
        p = name + name_size + 4
        if value_size > end - p:
            return False
        if not take_field(send, name, name_size, p, value_size, True):
            return False
        p += value_size
    return (send.seen & NEEDED_BINARY) == NEEDED_BINARY


cdef struct Marks:
    Keys keys
    int64_t tag_hash
    const uint8_t* producer
    Py_ssize_t producer_size
    int64_t number
    int64_t before
    bint has_number
    bint has_before
    bint has_key


cdef inline bint is_word(
    const uint8_t* name, Py_ssize_t size, const char* word, Py_ssize_t word_size
) noexcept nogil:
    return size == word_size and memcmp(name, word, word_size) == 0


cdef bint has_special(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Return whether a text holds what `Sends._send` leaves to the general path."""
    cdef const uint8_t* end = p + size
    if not (holds(p, c"_", size) or holds(p, c"Y", size)):
        return False
    while p < end:
        if end - p >= 5 and p[0] == c"D" and memcmp(p, b"DELAY", 5) == 0:
            return True
        if end - p >= 7 and p[0] == c"T" and memcmp(p, b"TIMER_D", 7) == 0:
            return True
        if end - p >= 8 and p[0] == c"T" and memcmp(p, b"TRAN_MSG", 8) == 0:
            return True
        if end - p >= 6 and p[0] == c"P" and memcmp(p, b"POP_CK", 6) == 0:
            return True
        if end - p >= 6 and p[0] == c"I" and memcmp(p, b"INNER_", 6) == 0:
            return True
        p += 1
    return False


cdef bint is_users(const uint8_t* name, Py_ssize_t size) noexcept nogil:
    """Return whether a name is a user's, and no search for another name stops at it."""
    if not c"a" <= name[0] <= c"z" or has_special(name, size):
        return False
    if size > 11 and memcmp(name + size - 11, b"INORDER_PID", 11) == 0:
        return False
    return not (size > 8 and memcmp(name + size - 8, b"UNIQ_KEY", 8) == 0)


cdef bint read_marks(const uint8_t* at, Py_ssize_t size, Marks* marks) noexcept nogil:
    """Read the properties of a message; False unless all of them are known to be plain.

    Plain are the names below and those that begin with a small letter: they are the users'. All
    names that RocketMQ or inorder give a meaning begin otherwise.
    """
    cdef const uint8_t* end = at + size
    cdef const uint8_t* value
    cdef const uint8_t* stop
    cdef Py_ssize_t name_size, value_size
    cdef int wanted = 0  # 1: the number, 2: perhaps its predecessor
    cdef bint has_tag = False
    marks.keys.unique = marks.keys.words = at
    marks.keys.unique_size = marks.keys.words_size = marks.producer_size = 0
    marks.has_number = marks.has_before = marks.has_key = False
    marks.tag_hash = 0
    while at < end:
        value = <const uint8_t*>memchr(at, 1, end - at)
        if value == NULL:
            return False
        name_size = value - at
        value += 1
        stop = <const uint8_t*>memchr(value, 2, end - value)
        if stop == NULL:
            stop = end
        value_size = stop - value
        if name_size == 0 or value_size == 0 or holds(at, 2, name_size):
            return False
        if holds(value, 1, value_size) or has_special(value, value_size):
            return False
        if wanted == 1 and not is_word(at, name_size, b"INORDER_SEQ", 11):
            return False
        if is_users(at, name_size):
            pass
        elif is_word(at, name_size, b"UNIQ_KEY", 8):
            if marks.keys.unique_size:
                return False
            marks.keys.unique, marks.keys.unique_size = value, value_size
        elif is_word(at, name_size, b"KEYS", 4):
            if marks.keys.words_size:
                return False
            marks.keys.words, marks.keys.words_size = value, value_size
        elif is_word(at, name_size, b"TAGS", 4):
            if has_tag:
                return False
            has_tag = True
            marks.tag_hash = <int32_t>hash_on(0, value, value_size)
        elif is_word(at, name_size, b"__SHARDINGKEY", 13):
            marks.has_key = True
        elif is_word(at, name_size, b"INORDER_PID", 11):
            if marks.producer_size or value_size > PRODUCER_MAX:
                return False
            marks.producer, marks.producer_size = value, value_size
            wanted = 1
            at = stop + 1
            continue
        elif is_word(at, name_size, b"INORDER_SEQ", 11):
            if wanted != 1 or not read_number(value, value_size, &marks.number):
                return False
            marks.has_number = True
            wanted = 2
            at = stop + 1
            continue
        elif is_word(at, name_size, b"INORDER_PREV", 12):
            if wanted != 2:
                return False
            marks.has_before = True
            if value_size == 2 and value[0] == c"-" and value[1] == c"1":
                marks.before = -1
            elif not read_number(value, value_size, &marks.before):
                return False
        elif not (
            is_word(at, name_size, b"WAIT", 4) or is_word(at, name_size, b"INSTANCE_ID", 11)
        ):
            return False
        wanted = 0
        at = stop + 1
    return wanted != 1


cdef class Place:
    """A queue that takes plain sends: `Target`, as the compiled module needs it."""

    cdef bytes topic, topic_part, map, digest
    cdef object queue
    cdef dict producers
    cdef int32_t queue_id
    cdef uint32_t prefix, magic
    # Of this run: the chain of its entries, and numbers that are not recorded yet.
    cdef int32_t first, last
    cdef Py_ssize_t count
    cdef int64_t offset
    cdef object state
    cdef bytes producer
    cdef int64_t number, begun, begun_at

    def __cinit__(
        self, bytes topic not None, bytes topic_part not None, int32_t magic, int32_t queue_id,
        queue, dict producers, bytes map not None, bytes digest not None, uint32_t prefix
    ):
        """`producers` are those of the queue by name; None: numbers do not count here."""
        self.topic, self.topic_part, self.magic = topic, topic_part, <uint32_t>magic
        self.queue_id, self.queue, self.producers = queue_id, queue, producers
        self.map, self.digest, self.prefix = map, digest, prefix


cdef class PlainSends:
    """Stores plain sends of a read, one after the other: `Sends.send_v2`, `Sends.send_long`.

    A run begins with `take` and ends when it returns: nothing of it waits here.
    """

    cdef dict places
    cdef PyObject* recent[RECENT]
    cdef object log, finish, stored_many, library
    cdef bytes store_host, suffix, prefix, head, fields
    cdef bytes answer_start, answer_ids, answer_fields, answer_flags, answer_end
    cdef Py_ssize_t body_max
    cdef Entry entries[RUN_MAX]
    cdef list touched
    cdef uint8_t* out
    cdef Py_ssize_t out_size, out_room
    cdef uint8_t* text
    cdef Py_ssize_t text_room
    cdef uint32_t* hashes
    cdef int64_t* owners
    cdef Py_ssize_t keys, keys_room

    def __cinit__(
        self, log, finish, stored_many, library, bytes store_host not None, bytes suffix not None,
        Py_ssize_t body_max, bytes prefix not None, tuple answer not None, bytes head not None,
        bytes fields not None
    ):
        """`prefix` begins each message id; `answer` are the texts of an answer between its values.

        `head` and `fields` are what is the same in each answer in RocketMQ's own serialization.
        """
        self.places, self.touched = {}, []
        self.log, self.finish, self.stored_many, self.library = log, finish, stored_many, library
        self.store_host, self.suffix, self.body_max = store_host, suffix, body_max
        self.prefix, self.head, self.fields = prefix, head, fields
        (
            self.answer_start, self.answer_ids, self.answer_fields, self.answer_flags,
            self.answer_end,
        ) = answer

    def __dealloc__(self):
        PyMem_Free(self.out)
        PyMem_Free(self.text)
        PyMem_Free(self.hashes)
        PyMem_Free(self.owners)

    def add(self, Place place not None):
        """Take sends to a queue from now on."""
        self._forget_recent()
        self.places[place.topic, place.queue_id] = place

    def forget(self):
        """Take no more sends, until their queues are added again."""
        self._forget_recent()
        self.places.clear()

    cdef void _forget_recent(self) noexcept:
        cdef int index
        for index in range(RECENT):
            self.recent[index] = NULL

    def take(
        self, list frames not None, Py_ssize_t index, connection, bytes born_host not None,
        int64_t now_ms, list answers not None
    ):
        """Store the plain sends from an index on; return the index of the first other frame.

        Their answers are added as one piece. A frame that is left has changed nothing.
        """
        cdef Py_ssize_t end = min(PyList_GET_SIZE(frames), index + RUN_MAX)
        cdef Send send
        cdef Marks marks
        if index < 0 or index >= end or not self.read(frames, index, &send, &marks):
            return index
        at, until, base = self.log.open_room()
        cdef Held pending = Held(self.log.pending, True)
        cdef uint8_t* room = <uint8_t*>pending.view.buf
        cdef Py_ssize_t start = at
        cdef Py_ssize_t used = at
        cdef Py_ssize_t stop = min(<Py_ssize_t>until, pending.view.len)
        cdef int64_t position = base
        cdef Py_ssize_t last_at = -1
        cdef Py_ssize_t begun = index
        cdef Py_ssize_t size
        cdef Place place
        if start < 0 or PyBytes_GET_SIZE(born_host) not in (8, 20):
            return index
        self.keys = self.out_size = 0
        try:
            while True:
                place = self.place_of(&send)
                if place is None or not self.is_in_turn(place, connection, &send, &marks):
                    break
                size = self.record_size(place, frames, index, born_host, &marks, &send)
                if size == 0 or size > stop - used:
                    break
                self.make_room(&marks)
                if place.count == 0:
                    place.offset = place.queue.next_offset
                    self.touched.append(place)
                self.write_record(
                    room + used, size, place, frames, index, born_host, position + used, now_ms,
                    &send
                )
                self.note(place, index - begun, position + used, size, &marks)
                if not send.flag & 2:
                    self.answer(place, position + used, &send, &marks)
                place.count += 1
                last_at = used
                used += size
                index += 1
                if index == end or not self.read(frames, index, &send, &marks):
                    break
        finally:
            if place is not None and place.count == 0:
                place.state = place.producer = None
            if last_at >= 0:
                self.end_run(
                    answers, index - begun, used - start, last_at, used, position + start, now_ms
                )
            self.touched.clear()
        return index

    cdef bint read(self, list frames, Py_ssize_t index, Send* send, Marks* marks) except *:
        """Read a frame; return whether it is a send that may be plain."""
        frame = <object>PyList_GET_ITEM(frames, index)
        if type(frame) is not tuple or PyTuple_GET_SIZE(frame) != 3:
            return False
        header = <object>PyTuple_GET_ITEM(frame, 1)
        body = <object>PyTuple_GET_ITEM(frame, 2)
        if type(header) is not bytes or type(body) is not bytes:
            return False
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(header)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(header)
        serializer = <object>PyTuple_GET_ITEM(frame, 0)
        memset(send, 0, sizeof(Send))
        if serializer == 0:
            if not read_json(data, size, send):
                return False
        else:
            send.binary = True
            if serializer != 1 or not read_binary(data, size, send):
                return False
        if (
            (send.flag != 0 and send.flag != 2)
            or send.numbers[SYS_FLAG] & ~<int64_t>PLAIN_SYS_FLAGS
            or send.numbers[QUEUE] < 0
            or not 0 < PyBytes_GET_SIZE(body) <= self.body_max
        ):
            return False
        # One more byte: the separator at the end.
        if send.properties_size + 1 > self.text_room:
            PyMem_Free(self.text)
            self.text_room = 0
            self.text = <uint8_t*>PyMem_Malloc(2 * send.properties_size + 1)
            if self.text == NULL:
                raise MemoryError
            self.text_room = 2 * send.properties_size + 1
        if send.escaped:
            size = unescape(send.properties, send.properties_size, self.text)
            if size < 0:
                return False
            send.properties_size = size
        else:
            if send.properties_size:
                memcpy(self.text, send.properties, send.properties_size)
        if send.properties_size and self.text[send.properties_size - 1] != 2:
            self.text[send.properties_size] = 2
            send.properties_size += 1
        if not read_marks(self.text, send.properties_size, marks):
            return False
        return (
            0 < marks.keys.unique_size <= UNIQUE_MAX
            and marks.keys.words_size < 2 * KEYS_MAX
            and is_simple(marks.keys.unique, marks.keys.unique_size)
        )

    cdef Place place_of(self, Send* send):
        """Return the queue of a send, None if it is not known."""
        cdef int slot = (send.numbers[QUEUE] + send.topic_size) & (RECENT - 1)
        cdef Place place
        if self.recent[slot] != NULL:
            place = <Place>self.recent[slot]
            if (
                place.queue_id == send.numbers[QUEUE]
                and PyBytes_GET_SIZE(place.topic) == send.topic_size
                and memcmp(PyBytes_AS_STRING(place.topic), send.topic, send.topic_size) == 0
            ):
                return place
        key = (
            PyBytes_FromStringAndSize(<const char*>send.topic, send.topic_size),
            send.numbers[QUEUE],
        )
        found = PyDict_GetItem(self.places, key)
        if found == NULL:
            return None
        place = <Place>found
        self.recent[slot] = <PyObject*>place
        return place

    cdef bint is_in_turn(
        self, Place place, connection, Send* send, Marks* marks
    ) except *:
        """Return whether a send fits the key map, and its number is plainly the next one."""
        if send.map_size and not is_text(place.map, send.map, send.map_size):
            return False
        if not marks.has_number or place.producers is None:
            return True
        if marks.has_key and not send.chosen and not is_text(
            place.digest, send.digest, send.digest_size
        ):
            return False
        if place.state is None or not is_text(
            place.producer, marks.producer, marks.producer_size
        ):
            self.record_numbers(place)
            name = PyUnicode_DecodeASCII(
                <const char*>marks.producer, marks.producer_size, "strict"
            )
            found = PyDict_GetItem(place.producers, name)
            if found == NULL:
                return False
            state = <object>found
            producer = state.producer
            if producer.connection is not connection or producer.named != marks.has_before:
                return False
            place.number = state.last
            place.producer = PyBytes_FromStringAndSize(
                <const char*>marks.producer, marks.producer_size
            )
            place.state = state
            place.begun = place.number + 1
        elif place.state.producer.named != marks.has_before:
            return False
        if marks.has_before:
            return marks.before == place.number and marks.number > place.number
        return marks.number == place.number + 1

    cdef int record_numbers(self, Place place) except -1:
        """Record the numbers of a producer up to the last one."""
        if place.state is not None and place.begun <= place.number:
            self.stored_many(
                place.state, range(place.begun, place.number + 1), place.begun_at
            )
            place.begun = place.number + 1
        return 0

    cdef Py_ssize_t record_size(
        self, Place place, list frames, Py_ssize_t index, bytes born_host, Marks* marks, Send* send
    ):
        """Return the size of a record; 0: its properties are too long."""
        cdef Py_ssize_t properties = send.properties_size + PyBytes_GET_SIZE(self.suffix)
        if properties > PROPERTIES_MAX:
            return 0
        body = <object>PyTuple_GET_ITEM(<object>PyList_GET_ITEM(frames, index), 2)
        return (
            RECORD_HEAD - 16 + PyBytes_GET_SIZE(born_host) + PyBytes_GET_SIZE(self.store_host)
            + PyBytes_GET_SIZE(body) + PyBytes_GET_SIZE(place.topic_part) + 2 + properties
        )

    cdef int make_room(self, Marks* marks) except -1:
        """Make room for the keys and the answer of one more message."""
        cdef Py_ssize_t wanted = self.keys + keys_max(marks.keys.words_size)
        cdef void* more
        if wanted > self.keys_room:
            more = PyMem_Realloc(self.hashes, 2 * wanted * sizeof(uint32_t))
            if more == NULL:
                raise MemoryError
            self.hashes = <uint32_t*>more
            more = PyMem_Realloc(self.owners, 2 * wanted * sizeof(int64_t))
            if more == NULL:
                raise MemoryError
            self.owners = <int64_t*>more
            self.keys_room = 2 * wanted
        wanted = (
            self.out_size + 256 + marks.keys.unique_size + len(self.prefix) + len(self.fields)
            + len(self.answer_start) + len(self.answer_ids) + len(self.answer_fields)
            + len(self.answer_flags) + len(self.answer_end)
        )
        if wanted > self.out_room:
            more = PyMem_Realloc(self.out, 2 * wanted)
            if more == NULL:
                raise MemoryError
            self.out = <uint8_t*>more
            self.out_room = 2 * wanted
        return 0

    cdef int write_record(
        self, uint8_t* out, Py_ssize_t size, Place place, list frames, Py_ssize_t index,
        bytes born_host, int64_t position, int64_t now_ms, Send* send
    ) except -1:
        body = <object>PyTuple_GET_ITEM(<object>PyList_GET_ITEM(frames, index), 2)
        cdef const uint8_t* content = <const uint8_t*>PyBytes_AS_STRING(body)
        cdef Py_ssize_t body_bytes = PyBytes_GET_SIZE(body)
        cdef Py_ssize_t born_bytes = PyBytes_GET_SIZE(born_host)
        cdef Py_ssize_t store_bytes = PyBytes_GET_SIZE(self.store_host)
        cdef Py_ssize_t properties = send.properties_size + PyBytes_GET_SIZE(self.suffix)
        cdef uint32_t sys_flag = <uint32_t>send.numbers[SYS_FLAG] & ~<uint32_t>(BORN_V6 | STORE_V6)
        if born_bytes != 8:
            sys_flag |= BORN_V6
        if store_bytes != 8:
            sys_flag |= STORE_V6
        cdef uint32_t crc = body_crc(content, body_bytes, self.library)
        put32(out, <uint32_t>size)
        put32(out + 4, place.magic)
        put32(out + 8, crc)
        put32(out + 12, <uint32_t>place.queue_id)
        put32(out + 16, <uint32_t>send.numbers[FLAG])
        put64(out + 20, <uint64_t>(place.offset + place.count))
        put64(out + 28, <uint64_t>position)
        put32(out + 36, sys_flag)
        put64(out + 40, <uint64_t>send.numbers[BORN])
        out += 48
        memcpy(out, PyBytes_AS_STRING(born_host), born_bytes)
        out += born_bytes
        put64(out, <uint64_t>now_ms)
        memcpy(out + 8, PyBytes_AS_STRING(self.store_host), store_bytes)
        out += 8 + store_bytes
        put32(out, <uint32_t>send.numbers[TIMES])
        put64(out + 4, 0)
        put32(out + 12, <uint32_t>body_bytes)
        memcpy(out + 16, content, body_bytes)
        out = put_bytes(out + 16 + body_bytes, place.topic_part)
        out[0], out[1] = (properties >> 8) & 0xFF, properties & 0xFF
        memcpy(out + 2, self.text, send.properties_size)
        put_bytes(out + 2 + send.properties_size, self.suffix)
        return 0

    cdef int note(
        self, Place place, Py_ssize_t which, int64_t position, Py_ssize_t size, Marks* marks
    ) except -1:
        """Note the queue entry, the keys and the number of a record."""
        cdef Entry* entry = &self.entries[which]
        cdef Py_ssize_t until
        entry.position, entry.size, entry.tag_hash = position, <int32_t>size, marks.tag_hash
        entry.next = -1
        if place.count:
            self.entries[place.last].next = <int32_t>which
        else:
            place.first = <int32_t>which
        place.last = <int32_t>which
        until = self.keys + hash_keys(place.prefix, &marks.keys, self.hashes + self.keys)
        while self.keys < until:
            self.owners[self.keys] = position
            self.keys += 1
        if marks.has_number and place.producers is not None:
            # Only numbers in a row at offsets in a row are recorded together.
            if marks.number != place.number + 1 or (
                place.begun <= place.number
                and place.begun_at + place.number + 1 - place.begun != place.offset + place.count
            ):
                self.record_numbers(place)
                place.begun, place.begun_at = marks.number, place.offset + place.count
            elif place.begun > place.number:
                place.begun_at = place.offset + place.count
            place.number = marks.number
        return 0

    cdef int answer(
        self, Place place, int64_t position, Send* send, Marks* marks
    ) except -1:
        cdef uint8_t* start = self.out + self.out_size
        cdef uint8_t* out = start + 8
        cdef uint8_t* fields
        cdef Number number
        cdef Py_ssize_t size
        if not send.binary:
            out = put_bytes(out, self.answer_start)
            write_number(&number, place.queue_id)
            out = put_number(out, &number)
            out = put_literal(out, b'","transactionId":"', 19)
            memcpy(out, marks.keys.unique, marks.keys.unique_size)
            out = put_bytes(out + marks.keys.unique_size, self.answer_ids)
            out = put_id(out, self.prefix, position)
            out = put_bytes(out, self.answer_fields)
            write_number(&number, place.offset + place.count)
            out = put_number(out, &number)
            out = put_bytes(out, self.answer_flags)
            if send.opaque < 0:
                out[0] = c"-"
                out += 1
            write_number(&number, send.opaque if send.opaque >= 0 else -send.opaque)
            out = put_number(out, &number)
            out = put_bytes(out, self.answer_end)
            put32(start + 4, <uint32_t>(out - start - 8))
        else:
            out = put_bytes(out, self.head)
            put32(out, <uint32_t>send.opaque)
            put32(out + 4, 1)
            put32(out + 8, 0)
            fields = out + 12
            out = put_literal(fields + 4, b"\x00\x07queueId", 9)
            size = write_number(&number, place.queue_id)
            put32(out, <uint32_t>size)
            out = put_number(out + 4, &number)
            out = put_literal(out, b"\x00\x05msgId", 7)
            put32(out, <uint32_t>(len(self.prefix) + 16))
            out = put_id(out + 4, self.prefix, position)
            out = put_literal(out, b"\x00\x0bqueueOffset", 13)
            size = write_number(&number, place.offset + place.count)
            put32(out, <uint32_t>size)
            out = put_number(out + 4, &number)
            out = put_bytes(out, self.fields)
            out = put_literal(out, b"\x00\x0dtransactionId", 15)
            put32(out, <uint32_t>marks.keys.unique_size)
            memcpy(out + 4, marks.keys.unique, marks.keys.unique_size)
            out += 4 + marks.keys.unique_size
            put32(fields, <uint32_t>(out - fields - 4))
            put32(start + 4, <uint32_t>(1 << 24 | (out - start - 8)))
        put32(start, <uint32_t>(out - start - 4))
        self.out_size += out - start
        return 0

    cdef int end_run(
        self, list answers, Py_ssize_t count, Py_ssize_t total, Py_ssize_t last_at,
        Py_ssize_t used, int64_t position, int64_t now_ms
    ) except -1:
        """Give queues, numbers, keys and the log what this run stored."""
        cdef Place place
        cdef bytes made
        cdef uint8_t* out
        cdef int32_t which
        cdef Py_ssize_t index, stored
        for one in self.touched:
            place = <Place>one
            stored = 0
            made = PyBytes_FromStringAndSize(NULL, place.count * ENTRY_BYTES)
            out = <uint8_t*>PyBytes_AS_STRING(made)
            which = place.first
            for index in range(place.count):
                put64(out, <uint64_t>self.entries[which].position)
                put32(out + 8, <uint32_t>self.entries[which].size)
                put64(out + 12, <uint64_t>self.entries[which].tag_hash)
                out += ENTRY_BYTES
                stored += self.entries[which].size
                which = self.entries[which].next
            place.queue.append_packed(made, stored)
            place.count = 0
            self.record_numbers(place)
            place.state = place.producer = None
        if self.out_size:
            answers.append(PyBytes_FromStringAndSize(<const char*>self.out, self.out_size))
        self.finish(
            used, last_at, count, total, position, now_ms,
            PyBytes_FromStringAndSize(
                <const char*>self.hashes, self.keys * <Py_ssize_t>sizeof(uint32_t)
            ),
            PyBytes_FromStringAndSize(
                <const char*>self.owners, self.keys * <Py_ssize_t>sizeof(int64_t)
            ),
        )
        return 0


cdef inline bint is_simple(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Return whether JSON needs no escape for these ASCII letters."""
    while size > 0:
        if p[0] < 32 or p[0] == c'"' or p[0] == c"\\":
            return False
        p += 1
        size -= 1
    return True


cdef inline bint is_text(bytes text, const uint8_t* p, Py_ssize_t size):
    return PyBytes_GET_SIZE(text) == size and (
        size == 0 or memcmp(PyBytes_AS_STRING(text), p, size) == 0
    )


cdef inline uint8_t* put_literal(uint8_t* out, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(out, text, size)
    return out + size


cdef inline uint8_t* put_id(uint8_t* out, bytes prefix, int64_t position):
    cdef int digit
    out = put_bytes(out, prefix)
    for digit in range(16):
        out[digit] = b"0123456789ABCDEF"[(<uint64_t>position >> (60 - 4 * digit)) & 15]
    return out + 16


# -- frames: wire/frame.py -------------------------------------------------------------------------

def split_frames(bytes data not None, int64_t limit, int64_t header_max):
    """Return the whole frames at the front of the data, and where they end: `receive_data`.

    It ends also before a frame that is impossible.
    """
    cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t at = 0
    cdef int64_t length, header_bytes, end
    cdef list frames = []
    while size - at >= 8:
        length = <int32_t>get32(base + at)
        header_bytes = get32(base + at + 4) & 0xFFFFFF
        end = at + 4 + length
        if (
            length + 4 > limit or header_bytes > length - 4 or base[at + 4] > 1
            or header_bytes > header_max or end > size
        ):
            break
        frames.append((
            base[at + 4],
            PyBytes_FromStringAndSize(<const char*>base + at + 8, header_bytes),
            PyBytes_FromStringAndSize(
                <const char*>base + at + 8 + header_bytes, length - 4 - header_bytes
            ),
        ))
        at = end
    return frames, at


# -- what a signature and a mark cover: wire/signature.py ------------------------------------------

cdef enum:
    SIGNED_FIELDS_MAX = 32
    SIGNED_BYTES_MAX = 1 << 20
    MARK_HEAD = 26

cdef struct Field:
    const uint8_t* name
    Py_ssize_t name_size
    const uint8_t* value
    Py_ssize_t value_size


cdef inline bint take_text(object text, const uint8_t** at, Py_ssize_t* size):
    """Find the letters of a text; False unless all are ASCII."""
    if type(text) is not str or not PyUnicode_IS_ASCII(text):
        return False
    at[0] = <const uint8_t*>PyUnicode_DATA(text)
    size[0] = PyUnicode_GET_LENGTH(text)
    return size[0] <= SIGNED_BYTES_MAX


cdef inline bint comes_before(const Field* one, const Field* other) noexcept nogil:
    cdef Py_ssize_t size = min(one.name_size, other.name_size)
    cdef int order = memcmp(one.name, other.name, size)
    return order < 0 or (order == 0 and one.name_size < other.name_size)


cdef Py_ssize_t sort_fields(dict fields, bint for_mark, Field* found):
    """Put the fields in the order of their names, without the signature and, for a mark, the mark.

    Return how many there are; -1 if they are many or not plain.
    """
    cdef PyObject* name
    cdef PyObject* value
    cdef Field one
    cdef Py_ssize_t position = 0, count = 0, at
    if len(fields) > SIGNED_FIELDS_MAX:
        return -1
    while PyDict_Next(fields, &position, &name, &value):
        if not (
            take_text(<object>name, &one.name, &one.name_size)
            and take_text(<object>value, &one.value, &one.value_size)
        ):
            return -1
        if one.name_size == 9 and memcmp(one.name, b"Signature", 9) == 0:
            continue
        if for_mark and one.name_size == 12 and memcmp(one.name, b"inorderBound", 12) == 0:
            continue
        at = count
        while at and comes_before(&one, &found[at - 1]):
            found[at] = found[at - 1]
            at -= 1
        found[at] = one
        count += 1
    return count


def signed_values(dict fields not None):
    """Return the values that a signature covers: `content`. None if not all are plain."""
    cdef Field found[SIGNED_FIELDS_MAX]
    cdef Py_ssize_t count = sort_fields(fields, False, found), at, size = 0
    cdef bytes made
    cdef uint8_t* out
    if count < 0:
        return None
    for at in range(count):
        size += found[at].value_size
    made = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*>PyBytes_AS_STRING(made)
    for at in range(count):
        memcpy(out, found[at].value, found[at].value_size)
        out += found[at].value_size
    return made


def marked(str session not None, int64_t counter, int64_t code, dict fields not None,
           int64_t body_length):
    """Return what the mark of a request covers: `bound_content`. None if not all is plain."""
    cdef Field found[SIGNED_FIELDS_MAX]
    cdef Py_ssize_t count = sort_fields(fields, True, found), at, size, session_size
    cdef const uint8_t* letters
    cdef bytes made
    cdef uint8_t* out
    if count < 0 or not take_text(session, &letters, &session_size) or session_size > 0xFFFF:
        return None
    if counter < 0 or body_length < 0 or code < -0x80000000ll or code > 0x7FFFFFFFll:
        return None
    size = MARK_HEAD + 8 * count + session_size
    for at in range(count):
        size += found[at].name_size + found[at].value_size
    made = PyBytes_FromStringAndSize(NULL, size)
    out = <uint8_t*>PyBytes_AS_STRING(made)
    put64(out, counter)
    put32(out + 8, <uint32_t>code)
    put64(out + 12, body_length)
    out[20], out[21] = session_size >> 8, session_size & 0xFF
    put32(out + 22, count)
    out += MARK_HEAD
    for at in range(count):
        put32(out + 4 * at, found[at].name_size)
        put32(out + 4 * (count + at), found[at].value_size)
    out += 8 * count
    memcpy(out, letters, session_size)
    out += session_size
    for at in range(count):
        memcpy(out, found[at].name, found[at].name_size)
        out += found[at].name_size
    for at in range(count):
        memcpy(out, found[at].value, found[at].value_size)
        out += found[at].value_size
    return made


# -- answers to pulls: store/reader.py, broker/pulls/service.py ------------------------------------

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define inorder_prefetch(p) __builtin_prefetch(p)
    #else
    #define inorder_prefetch(p) ((void)(p))
    #endif
    """
    void prefetch "inorder_prefetch"(const void* p) noexcept nogil

cdef enum:
    WANTED_MAX = 16
    AHEAD = 6  # entries; their records are on the way to the cache

cdef class PullAnswers:
    """Makes the whole frame of an answer with messages: `Reader.get` and `Pulls._answer`."""

    cdef bytes flags, next, high, low, topic_flags, end, opaque
    cdef int64_t joined_max

    def __cinit__(self, tuple texts not None, int64_t joined_max):
        """`texts` are those of the header between its numbers.

        Answers with more than `joined_max` bytes of records are not made.
        """
        (
            self.flags, self.next, self.high, self.low, self.topic_flags, self.opaque, self.end
        ) = texts
        self.joined_max = joined_max

    def found(
        self, data, view, int64_t base, int64_t log_end, bytes topic not None, int32_t queue_id,
        int64_t offset, Py_ssize_t count_max, int64_t bytes_max, wanted, int64_t min_offset,
        int64_t max_offset, int64_t group_flag, int64_t topic_flag, int64_t opaque
    ):
        """Return (frame, next offset, records, their bytes); None: some entry is not plain.

        `data` are entries from an offset on, `view` is the segment that begins at `base`. All
        entries that are looked at must lead to their records there.
        """
        cdef Held held = Held(data)
        cdef Held seen = Held(view)
        cdef const uint8_t* entry = <const uint8_t*>held.view.buf
        cdef const uint8_t* records = <const uint8_t*>seen.view.buf
        cdef Py_ssize_t left = held.view.len // ENTRY_BYTES
        cdef Py_ssize_t examined = 0
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t index, kinds = 0
        cdef int64_t limit = min(<int64_t>seen.view.len, log_end - base)
        cdef int64_t total = 0
        cdef int64_t at, size, ahead, run_at = 0, run_end = 0
        cdef int32_t kind[WANTED_MAX]
        if wanted is not None:
            if len(wanted) > WANTED_MAX:
                return None
            for one in wanted:
                kind[kinds] = one
                kinds += 1
        while examined < left:
            at = <int64_t>get64(entry) - base
            size = <int32_t>get32(entry + 8)
            if size == 0x7FFFFFFF or size <= 0:
                return None
            # As in `ranges_of`: also an entry that nobody wants is not looked at once it is full.
            if count and (count >= count_max or total + size > bytes_max):
                break
            if examined + AHEAD < left:
                ahead = <int64_t>get64(entry + AHEAD * ENTRY_BYTES) - base
                if 0 <= ahead <= limit - RECORD_MIN:
                    prefetch(records + ahead)
                    prefetch(records + min(ahead + max(size, 64) - 64, limit - 1))
            if wanted is None or is_one_of(<int32_t>get32(entry + 16), kind, kinds):
                if size < RECORD_MIN or at < 0 or at > limit - size or not is_record(
                    records + at, size, queue_id, offset + examined, at + base, topic
                ):
                    return None
                count += 1
                total += size
                if total > self.joined_max:
                    return None
            examined += 1
            entry += ENTRY_BYTES
        if count == 0:
            return None
        cdef uint8_t head[512]
        cdef uint8_t* out = head + 8
        if (
            len(self.flags) + len(self.next) + len(self.high) + len(self.low)
            + len(self.topic_flags) + len(self.opaque) + len(self.end) > 512 - 8 - 6 * 21
        ):
            return None
        out = put_signed(put_bytes(out, self.flags), group_flag)
        out = put_signed(put_bytes(out, self.next), offset + examined)
        out = put_signed(put_bytes(out, self.high), max_offset)
        out = put_signed(put_bytes(out, self.low), min_offset)
        out = put_signed(put_bytes(out, self.topic_flags), topic_flag)
        out = put_signed(put_bytes(out, self.opaque), opaque)
        out = put_bytes(out, self.end)
        cdef Py_ssize_t head_bytes = out - head
        put32(head, <uint32_t>(head_bytes - 4 + total))
        put32(head + 4, <uint32_t>(head_bytes - 8))
        cdef bytes made = PyBytes_FromStringAndSize(NULL, head_bytes + total)
        out = <uint8_t*>PyBytes_AS_STRING(made)
        memcpy(out, head, head_bytes)
        out += head_bytes
        entry = <const uint8_t*>held.view.buf
        for index in range(examined):
            at = <int64_t>get64(entry) - base
            size = <int32_t>get32(entry + 8)
            if wanted is None or is_one_of(<int32_t>get32(entry + 16), kind, kinds):
                if at != run_end:
                    if run_end > run_at:
                        memcpy(out, records + run_at, run_end - run_at)
                        out += run_end - run_at
                    run_at = at
                run_end = at + size
            entry += ENTRY_BYTES
        memcpy(out, records + run_at, run_end - run_at)
        return made, offset + examined, count, total


cdef inline bint is_one_of(int32_t value, const int32_t* values, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(count):
        if values[index] == value:
            return True
    return False


cdef inline uint8_t* put_signed(uint8_t* out, int64_t value) noexcept nogil:
    cdef Number number
    if value < 0:
        out[0] = c"-"
        out += 1
        value = -value
    write_number(&number, value)
    return put_number(out, &number)


cdef bint is_record(
    const uint8_t* record, int64_t size, int32_t queue_id, int64_t offset, int64_t position,
    bytes topic
):
    """Return whether the bytes, RECORD_MIN at least, are the record that they should be."""
    cdef uint32_t magic = get32(record + 4)
    cdef uint32_t flag = get32(record + 36)
    cdef int64_t name_bytes = PyBytes_GET_SIZE(topic)
    cdef int64_t topic_at, body
    if (
        <int32_t>get32(record) != size
        or <int32_t>get32(record + 12) != queue_id
        or <int64_t>get64(record + 20) != offset
        or <int64_t>get64(record + 28) != position
        or (magic != 0xDAA320A7u and magic != 0xDAA320ABu)
    ):
        return False
    topic_at = 84 + (12 if flag & 0x10 else 0) + (12 if flag & 0x20 else 0)
    if topic_at + 4 > size:
        return False
    body = <int32_t>get32(record + topic_at)
    topic_at += 4 + body + (1 if magic == 0xDAA320A7u else 2)
    if body < 0 or topic_at + name_bytes + 2 > size:
        return False
    if magic == 0xDAA320A7u:
        if record[topic_at - 1] != name_bytes:
            return False
    elif (record[topic_at - 2] << 8 | record[topic_at - 1]) != name_bytes:
        return False
    return memcmp(record + topic_at, PyBytes_AS_STRING(topic), name_bytes) == 0
