/* Looks names up as any C program does: lookup any|ipv4 NAME
 *
 * Prints the addresses, or why there are none, in one line. */

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#if defined(WANT_GLIBC) && !defined(__GLIBC__)
#error this C compiler builds for another libc than glibc
#endif
#if defined(WANT_MUSL) && defined(__GLIBC__)
#error this C compiler builds for glibc
#endif

/* Not in every netdb.h without a feature test macro. */
#ifndef EAI_NODATA
#define EAI_NODATA -5
#endif

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: lookup any|ipv4 NAME\n");
        return 2;
    }
    struct addrinfo hints = {0}, *list = NULL;
    hints.ai_family = strcmp(argv[1], "ipv4") == 0 ? AF_INET : AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    int error = getaddrinfo(argv[2], NULL, &hints, &list);
    switch (error) {
    case 0:
        break;
    case EAI_NONAME:
    case EAI_NODATA:
        puts("no address");
        return 0;
    case EAI_AGAIN:
        puts("try again");
        return 0;
    default:
        puts(gai_strerror(error));
        return 0;
    }
    for (struct addrinfo *entry = list; entry; entry = entry->ai_next) {
        char text[INET6_ADDRSTRLEN];
        const void *address = entry->ai_family == AF_INET
            ? (const void *)&((struct sockaddr_in *)entry->ai_addr)->sin_addr
            : (const void *)&((struct sockaddr_in6 *)entry->ai_addr)->sin6_addr;
        printf("%s%s", entry == list ? "" : " ", inet_ntop(entry->ai_family, address, text, sizeof text));
    }
    puts("");
    freeaddrinfo(list);
    return 0;
}
