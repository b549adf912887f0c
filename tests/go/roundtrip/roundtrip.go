// Checks that a resolver passes records on unchanged. The program is both the upstream of the resolver and its client,
// with the DNS library github.com/miekg/dns. TTLs, response codes, flags and the case of owners aren't compared.
//
// Prints UPSTREAM=address:port, and reads one line from standard input: the resolver's address for UDP and TCP, its
// address for TLS, and a PEM file with the CA of its certificate, or the word insecure. The resolver has to forward all
// queries to the upstream. Exits with 0 if all records are equal, and with 1 after the first difference.
//
//	-seed N       the seed of the messages
//	-messages N   the number of messages
//	-self         test the upstream itself, by UDP and TCP
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	// The size that upstream and client accept by UDP, in bytes.
	maxUDP = 1232
	// The size of a header (RFC 1035 section 4.1.1), and of a record of the root without data, such as OPT, in bytes.
	headerSize = 12
	bareSize   = 11
	// Queries are repeated, because datagrams may be lost, and answers may be late on a busy machine.
	attempts = 5
	timeout  = 20 * time.Second
)

func main() {
	log.SetFlags(0)
	seed := flag.Uint64("seed", 1, "the seed of the messages")
	messages := flag.Uint64("messages", 300, "the number of messages")
	self := flag.Bool("self", false, "test the upstream itself")
	flag.Parse()
	upstream := startUpstream()
	fmt.Printf("UPSTREAM=%s\n", upstream.address)
	transports := []transport{{"udp", upstream.address, nil}, {"tcp", upstream.address, nil}}
	if !*self {
		var err error
		if transports, err = readTransports(); err != nil {
			log.Fatal(err)
		}
	}
	records, types := 0, map[uint16]bool{}
	for number := range *messages {
		for _, transport := range transports {
			expected := newMessage(*seed, number, transport.network)
			upstream.current.Store(expected)
			compared, err := transport.check(expected, number)
			if err != nil {
				fmt.Printf("seed %d, message %d, %s: %v\n", *seed, number, transport.network, err)
				os.Exit(1)
			}
			records += compared
			for _, record := range slices.Concat(expected.Answer, expected.Ns, expected.Extra) {
				if rtype := record.Header().Rrtype; dns.TypeToRR[rtype] != nil && rtype != dns.TypeOPT {
					types[rtype] = true
				}
			}
		}
	}
	fmt.Printf("%d messages, %d records compared, %d of %d known types, %d answers of the upstream\n",
		*messages, records, len(types), len(knownTypes), upstream.answers.Load())
}

// A server that answers the question of the current message.
type upstream struct {
	address string
	current atomic.Pointer[dns.Msg]
	answers atomic.Int64
}

// Starts the upstream on a port that is free for TCP and UDP.
func startUpstream() *upstream {
	for {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		u := &upstream{address: listener.Addr().String()}
		socket, err := net.ListenPacket("udp", u.address)
		if err != nil {
			listener.Close()
			continue
		}
		for _, server := range []*dns.Server{{Listener: listener, Handler: u}, {PacketConn: socket, Handler: u}} {
			go func() { log.Fatal(server.ActivateAndServe()) }()
		}
		return u
	}
}

func (u *upstream) ServeDNS(writer dns.ResponseWriter, query *dns.Msg) {
	asked := query.Question[0]
	current := u.current.Load()
	if current == nil || !strings.EqualFold(current.Question[0].Name, asked.Name) {
		// A health check asks for the root.
		writer.WriteMsg(new(dns.Msg).SetRcode(query, dns.RcodeRefused))
		return
	}
	reply := current.Copy()
	reply.Id = query.Id
	if query.IsEdns0() == nil {
		reply.Extra = withoutOPT(reply.Extra)
	}
	packed := pack(reply)
	if writer.LocalAddr().Network() == "udp" && len(packed) > maxUDP {
		reply.Truncated = true
		reply.Answer, reply.Ns, reply.Extra = nil, nil, nil
		if query.IsEdns0() != nil {
			reply.SetEdns0(maxUDP, false)
		}
		packed = pack(reply)
	}
	// The question is repeated as it was spelled.
	if _, err := dns.PackDomainName(asked.Name, packed, headerSize, nil, false); err != nil {
		panic(err)
	}
	u.answers.Add(1)
	writer.Write(packed)
}

// A transport to the resolver: network, address, TLS.
type transport struct {
	network string
	address string
	config  *tls.Config
}

func readTransports() ([]transport, error) {
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) != 3 {
		return nil, errors.New("standard input has no line with the addresses for UDP and TCP, for TLS, and a CA")
	}
	config := &tls.Config{InsecureSkipVerify: words[2] == "insecure"}
	if !config.InsecureSkipVerify {
		authority, err := os.ReadFile(words[2])
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(authority) {
			return nil, fmt.Errorf("%s has no certificate", words[2])
		}
	}
	return []transport{{"udp", words[0], nil}, {"tcp", words[0], nil}, {"tcp-tls", words[1], config}}, nil
}

// Asks for a message, first uncached, then from the cache with another spelling, then from the cache again. Returns the
// number of compared records.
func (t *transport) check(expected *dns.Msg, number uint64) (int, error) {
	whole, err := parse(pack(expected), false)
	if err != nil {
		panic(err)
	}
	folded, err := parse(pack(expected), true)
	if err != nil {
		panic(err)
	}
	name, qtype := expected.Question[0].Name, expected.Question[0].Qtype
	random := rand.New(rand.NewPCG(number, 0))
	compared := 0
	for _, step := range []struct {
		what     string
		name     string
		expected *content
	}{{"uncached", name, whole}, {"cached, another spelling", otherCase(random, name), folded}, {"cached", name, whole}} {
		query := new(dns.Msg).SetQuestion(step.name, qtype)
		if t.network == "udp" || random.IntN(2) == 0 {
			query.SetEdns0(maxUDP, false)
		}
		answer, err := t.ask(query)
		if err != nil {
			return 0, fmt.Errorf("%s: %s %s: %w", step.what, step.name, dns.Type(qtype), err)
		}
		got, err := parse(answer, step.name != name)
		if err == nil {
			compared += len(got.records)
			err = step.expected.difference(got, t.network == "udp")
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %s %s: %w\nanswer: %x", step.what, step.name, dns.Type(qtype), err, answer)
		}
	}
	return compared, nil
}

// Sends a query over a new socket or connection, and returns the answer.
func (t *transport) ask(query *dns.Msg) (answer []byte, err error) {
	for attempt := range attempts {
		if attempt > 0 {
			time.Sleep(time.Second)
		}
		if answer, err = t.askOnce(query); err == nil {
			return answer, nil
		}
	}
	return nil, err
}

func (t *transport) askOnce(query *dns.Msg) ([]byte, error) {
	client := dns.Client{Net: t.network, TLSConfig: t.config, Timeout: timeout}
	connection, err := client.Dial(t.address)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(timeout))
	connection.UDPSize = dns.MaxMsgSize
	if err := connection.WriteMsg(query); err != nil {
		return nil, err
	}
	var header dns.Header
	answer, err := connection.ReadMsgHeader(&header)
	if err != nil {
		return nil, err
	}
	if header.Id != query.Id || header.Bits>>15 != 1 {
		return nil, errors.New("the answer doesn't belong to the query")
	}
	if rcode := int(header.Bits & 0xf); rcode != dns.RcodeSuccess {
		return nil, fmt.Errorf("the response code is %s", dns.RcodeToString[rcode])
	}
	if t.network == "udp" && len(answer) > maxUDP {
		return nil, fmt.Errorf("the answer has %d bytes", len(answer))
	}
	return answer, nil
}

// The records of a message, in a form that can be compared.
type content struct {
	truncated bool
	records   []record
	// The numbers of records in the sections.
	counts [3]int
	// The size without name compression, with an OPT record, in bytes.
	size int
}

type record struct {
	section      int
	owner        string
	rtype, class uint16
	// The data without name compression.
	rdata []byte
}

func (r record) equal(other record) bool {
	return r.section == other.section && r.owner == other.owner && r.rtype == other.rtype && r.class == other.class &&
		bytes.Equal(r.rdata, other.rdata)
}

func (r record) String() string {
	section := [3]string{"answer", "authority", "additional"}[r.section]
	return fmt.Sprintf("%s: %s %s %s %x", section, r.owner, dns.Class(r.class), dns.Type(r.rtype), r.rdata)
}

// Reads a message, and returns its records without OPT. Owners are in lower case; with fold, names in rdata, too.
func parse(message []byte, fold bool) (*content, error) {
	field := func(at int) int { return int(binary.BigEndian.Uint16(message[at:])) }
	_, at, err := dns.UnpackDomainName(message, headerSize)
	if err != nil || field(4) != 1 || at+4 > len(message) {
		return nil, fmt.Errorf("the question can't be read: %v", err)
	}
	at += 4
	parsed := &content{truncated: message[2]&2 != 0, size: at + bareSize}
	for section := range 3 {
		for number := range field(6 + 2*section) {
			owner, fixed, err := dns.UnpackDomainName(message, at)
			if err != nil || fixed+10 > len(message) {
				return nil, fmt.Errorf("record %d of section %d can't be read: %v", number, section, err)
			}
			start := fixed + 10
			if at = start + field(fixed+8); at > len(message) {
				return nil, fmt.Errorf("record %d of section %d is cut", number, section)
			}
			rtype, class := uint16(field(fixed)), uint16(field(fixed+2))
			if rtype == dns.TypeOPT {
				continue
			}
			rdata := expand(message[:at], start, rtype, fold)
			parsed.records = append(parsed.records, record{section, strings.ToLower(owner), rtype, class, rdata})
			parsed.counts[section]++
			parsed.size += len(packName(owner)) + 10 + len(rdata)
		}
	}
	if at != len(message) {
		return nil, fmt.Errorf("%d bytes follow the last record", len(message)-at)
	}
	return parsed, nil
}

// The names in rdata that may be compressed: those in the types of RFC 1035 (RFC 3597 section 4).
var compressible = map[uint16]struct{ before, names int }{
	dns.TypeNS: {0, 1}, dns.TypeMD: {0, 1}, dns.TypeMF: {0, 1}, dns.TypeCNAME: {0, 1}, dns.TypeMB: {0, 1},
	dns.TypeMG: {0, 1}, dns.TypeMR: {0, 1}, dns.TypePTR: {0, 1}, dns.TypeMX: {2, 1}, dns.TypeSOA: {0, 2},
	dns.TypeMINFO: {0, 2},
}

// Returns the rdata at the end of message with its names in full. Rdata that can't be read stays as it is.
func expand(message []byte, start int, rtype uint16, fold bool) []byte {
	layout := compressible[rtype]
	if layout.names == 0 || start+layout.before > len(message) {
		return message[start:]
	}
	at := start + layout.before
	expanded := bytes.Clone(message[start:at])
	for range layout.names {
		name, next, err := dns.UnpackDomainName(message, at)
		if err != nil {
			return message[start:]
		}
		if fold {
			name = strings.ToLower(name)
		}
		expanded, at = append(expanded, packName(name)...), next
	}
	return append(expanded, message[at:]...)
}

func packName(name string) []byte {
	packed := make([]byte, 255)
	end, err := dns.PackDomainName(name, packed, 0, nil, false)
	if err != nil {
		panic(err)
	}
	return packed[:end]
}

// Returns whether a record is an alias, or the signature of one (RFC 4034 section 3.1.1).
func (r record) isAlias() bool {
	rtype := r.rtype
	if rtype == dns.TypeRRSIG && len(r.rdata) >= 2 {
		rtype = binary.BigEndian.Uint16(r.rdata)
	}
	return rtype == dns.TypeCNAME || rtype == dns.TypeDNAME
}

// Returns the same records, but with the aliases of the answer section first.
func (c *content) withAliasesFirst() *content {
	sorted := *c
	sorted.records = slices.Clone(c.records)
	place := func(r record) int {
		if r.isAlias() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(sorted.records[:c.counts[0]], func(a, b record) int { return place(a) - place(b) })
	return &sorted
}

// Returns the first record of an answer that differs from the one at the same place here.
func (c *content) orderDifference(got *content) error {
	for i, record := range got.records {
		if i >= len(c.records) {
			return fmt.Errorf("record %d is too many\n     got %v", i, record)
		}
		if expected := c.records[i]; !record.equal(expected) {
			return fmt.Errorf("record %d differs\nexpected %v\n     got %v", i, expected, record)
		}
	}
	return nil
}

// Returns the first difference between the records of an answer and these. A truncated answer has the aliases first; so
// may the whole answer section, alone, that only fits because the resolver has compressed its names anew.
func (c *content) difference(got *content, byUDP bool) error {
	if got.truncated {
		c = c.withAliasesFirst()
	}
	err := c.orderDifference(got)
	if err != nil && byUDP && c.size > maxUDP && got.counts[1]+got.counts[2] == 0 {
		c = c.withAliasesFirst()
		err = c.orderDifference(got)
	}
	if err != nil {
		return err
	}
	missing := len(got.records) < len(c.records)
	switch {
	case !byUDP && got.truncated:
		return errors.New("TC is set")
	case missing && (!byUDP || c.size <= maxUDP):
		return fmt.Errorf("%d of %d records, first missing\nexpected %v",
			len(got.records), len(c.records), c.records[len(got.records)])
	// RFC 2181 section 9: TC is set if required records are missing; those beside a whole answer aren't required.
	case got.counts[0] < c.counts[0] && !got.truncated:
		return fmt.Errorf("%d of %d answers, and TC isn't set", got.counts[0], c.counts[0])
	}
	return nil
}
