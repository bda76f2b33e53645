/* A server that does no work: answers every send request at once, to show what the generator can do.
 *
 *   nullserver PORT     (loopback only; ends when its standard input closes)
 *
 * It looks for opaque and queue id in the header and answers code 0 with the next offset.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CAPACITY (4 << 20)

struct conn {
    int fd;
    size_t used;
    char *data;
};

static long long offsets[10];

static uint32_t word(const char *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static size_t answer(const char *frame, size_t size, char *out)
{
    size_t header = word(frame + 4) & 0xFFFFFF;
    const char *queue = memmem(frame + 8, header, "\"e\":\"", 5);
    const char *opaque = memmem(frame + 8, header, "\"opaque\":", 9);
    if (header + 8 > size || !queue || !opaque)
        exit(3);
    int n = sprintf(out + 8,
                    "{\"code\":0,\"extFields\":{\"queueId\":\"%c\",\"msgId\":"
                    "\"7F00000100002A9F0000000000000000\",\"queueOffset\":\"%lld\"},\"flag\":1,"
                    "\"language\":\"JAVA\",\"opaque\":%.10s,\"version\":479}",
                    queue[5], offsets[queue[5] - '0']++, opaque + 9);
    uint32_t length = htonl((uint32_t)n + 4), head = htonl((uint32_t)n);
    memcpy(out, &length, 4);
    memcpy(out + 4, &head, 4);
    return (size_t)n + 8;
}

static void serve(struct conn *c)
{
    static char out[CAPACITY];
    ssize_t n = recv(c->fd, c->data + c->used, CAPACITY - c->used, 0);
    if (n <= 0) {
        close(c->fd);
        return;
    }
    c->used += (size_t)n;
    size_t at = 0, sent = 0;
    while (c->used - at >= 8 && c->used - at >= word(c->data + at) + 4) {
        size_t size = word(c->data + at) + 4;
        sent += answer(c->data + at, size, out + sent);
        at += size;
    }
    memmove(c->data, c->data + at, c->used - at);
    c->used -= at;
    if (sent && send(c->fd, out, sent, MSG_NOSIGNAL) < 0)
        close(c->fd);
}

int main(int argc, char **argv)
{
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_port = htons((uint16_t)(argc > 1 ? atoi(argv[1]) : 0));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024))
        return perror("bind"), 2;
    struct conn door = {.fd = listener}, keys = {.fd = 0};
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &door}, events[64];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    e.data.ptr = &keys;
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &e);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int n = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (c == &keys)
                return 0;
            if (c != &door) {
                serve(c);
                continue;
            }
            c = calloc(1, sizeof *c);
            c->fd = accept(listener, NULL, NULL);
            c->data = malloc(CAPACITY);
            setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            e.data.ptr = c;
            epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
        }
    }
}
