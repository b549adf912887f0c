// Looks names up with Go's own resolver: lookup any|ipv4 NAME
//
// Prints the addresses, or why there are none, in one line.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: lookup any|ipv4 NAME")
		os.Exit(2)
	}
	network := "ip"
	if os.Args[1] == "ipv4" {
		network = "ip4"
	}
	resolver := net.Resolver{PreferGo: true}
	addresses, err := resolver.LookupNetIP(context.Background(), network, os.Args[2])
	var failure *net.DNSError
	switch {
	case err == nil:
		for i, address := range addresses {
			if i > 0 {
				fmt.Print(" ")
			}
			fmt.Print(address.Unmap())
		}
		fmt.Println()
	case errors.As(err, &failure) && failure.IsNotFound:
		fmt.Println("no address")
	case errors.As(err, &failure) && failure.IsTemporary:
		fmt.Println("try again")
	default:
		fmt.Println(err)
	}
}
