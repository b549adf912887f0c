package main

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/miekg/dns"
)

// The types of records in messages: all types that the library knows, except meta types (RFC 6895 section 3.1) and SIG,
// which may be the signature of a message (RFC 2931 section 3).
var knownTypes = func() []uint16 {
	types := slices.Sorted(maps.Keys(dns.TypeToRR))
	excluded := []uint16{dns.TypeOPT, dns.TypeTSIG, dns.TypeTKEY, dns.TypeSIG, dns.TypeANY}
	return slices.DeleteFunc(types, func(rtype uint16) bool { return slices.Contains(excluded, rtype) })
}()

// Types without names in rdata, which also get malformed rdata: in names, it might have compression pointers to
// anything.
var alsoMalformed = []uint16{
	dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeHINFO, dns.TypeLOC, dns.TypeCAA, dns.TypeNSEC3, dns.TypeAPL,
	dns.TypeTLSA,
}

// A source of random records.
type generator struct {
	*rand.Rand
	question string
	// The names to build longer names on.
	names []string
	// Whether TTLs are random, so that the message may not be cacheable.
	anyTTL bool
}

// Returns the reply to the query for a name, which follows from seed, number and network.
func newMessage(seed, number uint64, network string) *dns.Msg {
	question := fmt.Sprintf("m%d.%s.example.", number, network)
	g := &generator{
		Rand:     rand.New(rand.NewPCG(seed, number)),
		question: question,
		names:    []string{".", "example.", question},
	}
	g.anyTTL = g.IntN(10) == 0
	message := &dns.Msg{Compress: number%2 == 0}
	message.Response, message.RecursionAvailable = true, true
	message.Question = []dns.Question{{Name: question, Qtype: g.pick(knownTypes), Qclass: dns.ClassINET}}
	// NXNAME can't be asked for (RFC 9824 section 3.5).
	if message.Question[0].Qtype == dns.TypeNXNAME {
		message.Question[0].Qtype = dns.TypeA
	}
	size := func(records []dns.RR, compress bool) int {
		whole := *message
		whole.Answer, whole.Compress = records, compress
		return len(pack(&whole))
	}

	const most = dns.MaxMsgSize - bareSize
	limit := 40 + g.IntN(1<<(5+g.IntN(12)))
	// Of these two messages one is compressed.
	isFull := number%20 == 7 || number%20 == 8
	if isFull || limit > most {
		limit = most
	}
	var records []dns.RR
	if g.IntN(8) > 0 {
		// An answer without a record of the asked type may not be cacheable.
		answer := g.record(question, message.Question[0].Qtype)
		answer.Header().Class = dns.ClassINET
		records = append(records, answer)
	}
	// Compression may halve the size of a message.
	for length := 0; length < 2*limit; length += dns.Len(records[len(records)-1]) {
		records = append(records, g.anyRecord())
	}
	fitting := sort.Search(len(records), func(n int) bool { return size(records[:n+1], message.Compress) > limit })
	records = records[:fitting]
	if rest := most - size(records, message.Compress) - bareSize; isFull && rest >= 0 {
		header := dns.RR_Header{Name: ".", Rrtype: dns.TypeNULL, Class: dns.ClassINET, Ttl: 300}
		records = append(records, &dns.NULL{Hdr: header, Data: string(g.octets(rest, rest))})
	}

	answers := g.IntN(len(records) + 1)
	authorities := answers + g.IntN(len(records)-answers+1)
	if g.IntN(3) == 0 {
		answers, authorities = len(records), len(records)
	}
	message.Answer, message.Ns = records[:answers], records[answers:authorities]
	// RFC 6891 section 6.1.1: OPT may be anywhere among the additional records. Without it, the names after it have
	// other offsets, so the resolver has to encode them anew, and the message has to fit without compression.
	opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT, Class: maxUDP}}
	place := len(records) - authorities
	if size(records, false) <= most && g.IntN(4) == 0 {
		place = g.IntN(place + 1)
	}
	message.Extra = slices.Insert(slices.Clone(records[authorities:]), place, dns.RR(opt))
	return message
}

func pack(message *dns.Msg) []byte {
	packed, err := message.Pack()
	if err != nil {
		panic(err)
	}
	return packed
}

func withoutOPT(records []dns.RR) []dns.RR {
	return slices.DeleteFunc(records, func(record dns.RR) bool { return record.Header().Rrtype == dns.TypeOPT })
}

func (g *generator) anyRecord() dns.RR {
	owner := g.question
	if g.IntN(2) == 0 {
		owner = g.name()
	} else if g.IntN(4) == 0 {
		owner = otherCase(g.Rand, owner)
	}
	rtype := g.pick(knownTypes)
	if rtype == dns.TypeCNAME && g.IntN(10) > 0 {
		// With an alias of the name in the question, a message is rarely cacheable.
		owner = g.name()
	}
	switch g.IntN(40) {
	case 0:
		return g.opaque(owner, rtype, nil)
	case 1:
		// Types that aren't assigned (RFC 3597).
		return g.opaque(owner, uint16(1000+g.IntN(31000)), g.octets(0, 5000))
	case 2:
		return g.opaque(owner, g.pick(alsoMalformed), g.octets(0, 300))
	}
	return g.record(owner, rtype)
}

func (g *generator) opaque(owner string, rtype uint16, rdata []byte) dns.RR {
	return &dns.RFC3597{Hdr: g.header(owner, rtype), Rdata: hex.EncodeToString(rdata)}
}

// Returns a record with well-formed data.
func (g *generator) record(owner string, rtype uint16) dns.RR {
	record := dns.TypeToRR[rtype]()
	*record.Header() = g.header(owner, rtype)
	g.fill(reflect.ValueOf(record).Elem())
	return record
}

func (g *generator) header(owner string, rtype uint16) dns.RR_Header {
	header := dns.RR_Header{Name: owner, Rrtype: rtype, Class: dns.ClassINET, Ttl: 300 + g.Uint32N(86400)}
	if g.anyTTL {
		header.Ttl = g.Uint32() >> g.IntN(33)
	}
	if g.IntN(20) == 0 {
		header.Class = uint16(g.Uint32())
	}
	return header
}

// Fills the fields of a record; their tags describe their wire form.
func (g *generator) fill(record reflect.Value) {
	for i := range record.NumField() {
		field := record.Field(i)
		tag, sizeField, _ := strings.Cut(record.Type().Field(i).Tag.Get("dns"), ":")
		switch value := field.Addr().Interface().(type) {
		case *dns.RR_Header:
		case *uint8:
			*value = uint8(g.Uint32())
		case *uint16:
			*value = uint16(g.Uint32())
		case *uint32:
			*value = g.Uint32()
		case *uint64:
			*value = g.Uint64()
			if tag == "uint48" {
				*value >>= 16
			}
		case *net.IP:
			if size := map[string]int{"a": net.IPv4len, "aaaa": net.IPv6len}[tag]; size > 0 {
				*value = g.octets(size, size)
			}
		case *string:
			*value = g.text(record, tag, sizeField)
		case *[]string:
			for range 1 + g.IntN(4) {
				*value = append(*value, g.text(record, tag, ""))
			}
		case *[]uint16:
			for range g.IntN(20) {
				*value = append(*value, uint16(g.Uint32N(1<<(4+g.IntN(13)))))
			}
			slices.Sort(*value)
			*value = slices.Compact(*value)
		case *[]dns.APLPrefix:
			for range g.IntN(5) {
				size := []int{net.IPv4len, net.IPv6len}[g.IntN(2)]
				mask := net.CIDRMask(g.IntN(8*size+1), 8*size)
				network := net.IPNet{IP: net.IP(g.octets(size, size)).Mask(mask), Mask: mask}
				*value = append(*value, dns.APLPrefix{Negation: g.IntN(2) == 0, Network: network})
			}
		case *[]dns.SVCBKeyValue:
			*value = g.parameters()
		default:
			// A type with the fields of another type, such as CDS.
			g.fill(field)
		}
	}
}

// Returns a random name, character string or octets in the library's form, and sets the fields that belong to them.
func (g *generator) text(record reflect.Value, tag, sizeField string) string {
	most := 5000
	if sizeField != "" || tag == "" || tag == "txt" || tag == "octet" {
		// The size has one octet (RFC 1035 section 3.3). The library can't pack a longer "octet" field.
		most = 255
	}
	octets := g.octets(0, most)
	if sizeField != "" {
		// This field precedes the octets.
		record.FieldByName(sizeField).SetUint(uint64(len(octets)))
	}
	switch tag {
	case "domain-name", "cdomain-name":
		return g.name()
	case "", "txt", "octet":
		return escaped(octets)
	case "any":
		return string(octets)
	case "hex", "size-hex":
		return hex.EncodeToString(octets)
	case "base64", "size-base64":
		return base64.StdEncoding.EncodeToString(octets)
	case "size-base32":
		return base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(octets)
	case "ipsechost", "amtrelayhost":
		// RFC 4025 section 2.3 and RFC 8777 section 4.2.3: no gateway, an IPv4 address, an IPv6 address, or a name.
		kind := g.IntN(4)
		record.FieldByName("GatewayType").SetUint(uint64(kind))
		size := []int{0, net.IPv4len, net.IPv6len, 0}[kind]
		record.FieldByName("GatewayAddr").SetBytes(g.octets(size, size))
		return g.name()
	}
	panic("unknown tag " + tag)
}

// Returns SVCB parameters (RFC 9460 section 7).
func (g *generator) parameters() (parameters []dns.SVCBKeyValue) {
	for _, parameter := range []dns.SVCBKeyValue{
		&dns.SVCBNoDefaultAlpn{},
		&dns.SVCBPort{Port: uint16(g.Uint32())},
		&dns.SVCBIPv4Hint{Hint: []net.IP{g.octets(4, 4), g.octets(4, 4)}},
		&dns.SVCBECHConfig{ECH: g.octets(0, 300)},
		&dns.SVCBIPv6Hint{Hint: []net.IP{g.octets(16, 16)}},
		&dns.SVCBDoHPath{Template: "/dns-query{?dns}"},
		&dns.SVCBOhttp{},
		&dns.SVCBLocal{KeyCode: dns.SVCBKey(1000 + g.IntN(60000)), Data: g.octets(0, 300)},
	} {
		if g.IntN(2) == 0 {
			parameters = append(parameters, parameter)
		}
	}
	if g.IntN(2) == 0 {
		alpn, mandatory := &dns.SVCBAlpn{Alpn: []string{"h2", "dot"}}, &dns.SVCBMandatory{Code: []dns.SVCBKey{dns.SVCB_ALPN}}
		parameters = append(parameters, alpn, mandatory)
	}
	return parameters
}

// Returns a name, often one that has occurred, or one below it.
func (g *generator) name() string {
	name := g.names[g.IntN(len(g.names))]
	labels := g.IntN(3)
	if g.IntN(20) == 0 {
		labels = 127
	}
	for range labels {
		label := make([]byte, 1+g.IntN(8))
		if g.IntN(8) == 0 {
			label = g.octets(1, 63)
		}
		for i := range label {
			if len(label) <= 8 {
				label[i] = "abcdefghijklmnopqrstuvwxyzABC019-_"[g.IntN(34)]
			}
		}
		longer := escaped(label) + "." + strings.TrimPrefix(name, ".")
		// RFC 1035 section 2.3.4: 255 octets.
		if _, err := dns.PackDomainName(longer, make([]byte, 255), 0, nil, false); err != nil {
			break
		}
		name = longer
		g.names = append(g.names, name)
	}
	if g.IntN(4) == 0 {
		name = otherCase(g.Rand, name)
	}
	return name
}

func (g *generator) pick(types []uint16) uint16 {
	return types[g.IntN(len(types))]
}

// Returns random octets, often few.
func (g *generator) octets(least, most int) []byte {
	more := most - least
	switch {
	case g.IntN(5) > 0:
		more = min(more, 40)
	case g.IntN(10) > 0:
		more = min(more, 300)
	}
	octets := make([]byte, least+g.IntN(more+1))
	for i := range octets {
		octets[i] = byte(g.Uint32())
	}
	return octets
}

// Returns octets in presentation format (RFC 1035 section 5.1).
func escaped(octets []byte) string {
	var text strings.Builder
	for _, octet := range octets {
		if octet == '-' || octet == '_' || '0' <= octet && octet <= '9' || 'A' <= octet&^0x20 && octet&^0x20 <= 'Z' {
			text.WriteByte(octet)
		} else {
			fmt.Fprintf(&text, "\\%03d", octet)
		}
	}
	return text.String()
}

// Returns a name with its letters in random case (RFC 4343).
func otherCase(random *rand.Rand, name string) string {
	spelled := []byte(name)
	for i, octet := range spelled {
		if 'A' <= octet&^0x20 && octet&^0x20 <= 'Z' {
			spelled[i] = octet ^ byte(random.IntN(2)<<5)
		}
	}
	return string(spelled)
}
