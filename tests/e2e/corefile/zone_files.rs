//! `file`: answers from zone files.

use super::compare::{Group, compare};

const ZONE: &str = r#"$TTL 1h
$ORIGIN example.org.
@       5m IN SOA ns1.example.org. hostmaster.example.org. (
                2026010101 ; serial
                2h 30m 2w  ; refresh, retry, expire
                5m )       ; minimum
        NS  ns1
        NS  ns2.example.net.
        MX  10 mail
        MX  20 mail.example.net.
        A   192.0.2.1
        AAAA 2001:db8::1
        TXT "v=spf1 -all" "a;b" unquoted
        CAA 0 issue "ca.example.net"
ns1     300 A 192.0.2.53
mail    A   192.0.2.25
        AAAA 2001:db8::25
www     CNAME @
chain1  CNAME chain2
chain2  CNAME chain3
chain3  CNAME www
self    CNAME self
one     CNAME two
two     CNAME one
toghost CNAME ghost
toempty CNAME onlytxt
onlytxt TXT x
towild  CNAME q.wild
outside CNAME target.example.net.
outnone CNAME none.example.net.
outdark CNAME dark.test.
a.b.c   A   192.0.2.3
*.wild  A   192.0.2.4
*.wild  TXT wild
x.y.wild A  192.0.2.5
*.cwild CNAME www
*.mwild MX 5 mail
Upper   A   192.0.2.6
UPPER   TXT "Case"
e\046s  A   192.0.2.7
_sip._tcp SRV 1 2 5060 mail
          SRV 1 2 5060 Mail
          SRV 1 2 5061 other.example.net.
svc     HTTPS 1 mail alpn=h2,h3 port=8443 ipv4hint=192.0.2.8
svcself HTTPS 0 www
svcmix  SVCB 1 . ipv6hint=2001:db8::1 alpn="h2,h3" mandatory=port,alpn port=1 no-default-alpn key667="a\210 b"
svcdoh  SVCB 1 mixed.case dohpath=/dns-query{?dns} ech=AEX+DQ==
child   NS  ns.child
        NS  ns.other.example.
        DS  12345 8 2 49FD46E6C4B45C55D4AC49FD46E6C4B45C55D4AC49FD46E6C4B45C55D4AC0000
ns.child A  192.0.2.9
        AAAA 2001:db8::9
below.child A 192.0.2.10
tochild CNAME www.child
old     DNAME new
x.new   A   192.0.2.11
y.new   CNAME x.new
away    DNAME example.net.
round   DNAME round
trip    DNAME trap
trap    DNAME trip
signed  CNAME www
        NSEC  svc CNAME RRSIG NSEC
multi   A   192.0.2.12
multi   A   192.0.2.13
multi   A   192.0.2.12
ptr     PTR a.B.example.
naptr   NAPTR 100 10 "U" "E2U+sip" "!^.*$!sip:a@example.org!" .
loc     LOC 52 22 23.000 N 4 53 32.000 E -2.00m 0.00m 10000m 10m
sshfp   SSHFP 1 1 123456789abcdef67890123456789abcdef67890
tlsa    TLSA 3 1 1 ( d2abde240d7cd3ee6b4b28c54df034b9
                     7983a1d16e8a410e4561cb106618e971 )
key     DNSKEY 256 3 8 AwEAAbOF
        RRSIG DNSKEY 8 3 3600 20300101000000 20200101000000 12345 example.org. AwEAAbOF
uri     URI 10 1 "https://example.org/"
hinfo   HINFO "PC" "Linux x"
hinfo2  HINFO "PC Linux"
hinfo3  HINFO PC
hinfo4  HINFO PC Linux 6
apl     APL 1:192.168.32.0/21 !1:192.168.38.0/28 2:2001:db8::/32
eui     EUI48 00-00-5e-00-53-2a
eui     EUI64 00-00-5e-ef-10-00-00-2a
relay   AMTRELAY 10 0 1 203.0.113.15
hip     HIP 2 200100107B1A74DF365639CC39F1D578 AwEAAbdx rvs.example.org.
rp      RP admin.example.org. onlytxt
afsdb   AFSDB 1 mail
x25     X25 311061700956
isdn    ISDN 150862028003217 004
gpos    GPOS -32.6882 116.8652 10.0
cert    CERT 1 12345 8 AwEAAbOF
cert2   CERT PKIX 0 RSASHA256 ( AwEAAbOF
                 AwEAAbOF )
dhcid   DHCID AAIBY2/AuCccgoJbsaxcQc9TUapptP69lOjxfNuVAA2kjEA=
nid     NID 10 0014:4fff:ff20:ee64
l32     L32 10 10.1.2.0
l64     L64 10 2001:0DB8:1140:1000
lp      LP 10 l32
csync   CSYNC 66 3 A NS AAAA
zonemd  ZONEMD 2018031500 1 1 FEBE3D4CE2EC2FFA4BA99D46CD69D6D29711E55217057BEE7EB1A7B641A47BA7FED2DD5B97AE499FAFA4F22C6BD647DE
unknown TYPE65280 \# 4 0a000001
known   A \# 4 0a000002
$GENERATE 1-4/2 gen-$ A 10.0.0.$
$GENERATE 10-11 gx-${0,4,x} CNAME gen-${-9}
"#;

const NET: &str = "
@ 600 SOA ns host 1 2 3 4 50
@ 600 NS ns
ns 600 A 192.0.2.77
target 600 A 192.0.2.78
away 600 A 192.0.2.79
";

pub const GROUPS: &[Group] = &[Group {
    name: "file",
    corefile: "
        example.org:{$PORT} {
            bind 127.0.0.1
            file db.example.org
        }
        example.net:{$PORT} {
            bind 127.0.0.1
            root zones
            file net {
                reload 0
            }
        }
        lone.test:{$PORT} {
            bind 127.0.0.1
            file lone
        }",
    files: &[
        ("db.example.org", ZONE),
        ("zones/net", NET),
        ("lone", "@ 5 SOA ns.example.net. host 1 2 3 4 5\n@ 60 NS ns.example.net.\n"),
    ],
    questions: "
        example.org. SOA each
        example.org. NS
        example.org. NS edns do
        example.org. A each
        example.org. MX
        example.org. TXT
        example.org. CAA
        example.org. DS
        www.example.org. A
        www.example.org. CNAME
        www.example.org. MX
        www.example.org. TYPE999
        chain1.example.org. AAAA
        chain1.example.org. CNAME
        self.example.org. A
        one.example.org. A
        toghost.example.org. A
        toempty.example.org. A
        towild.example.org. A
        towild.example.org. MX
        outside.example.org. A
        outside.example.org. AAAA
        outside.example.org. CNAME
        outnone.example.org. A
        outdark.example.org. A
        ghost.example.org. A each
        a.ghost.example.org. A
        b.c.example.org. A
        c.example.org. TXT
        x.b.c.example.org. A
        a.b.c.example.org. A
        a.b.c.example.org. MX
        wild.example.org. A
        q.wild.example.org. A
        Q.r.wild.example.org. A
        q.wild.example.org. TXT
        q.wild.example.org. MX
        *.wild.example.org. A
        y.wild.example.org. A
        q.y.wild.example.org. A
        x.y.wild.example.org. A
        q.x.y.wild.example.org. A
        q.cwild.example.org. A
        q.cwild.example.org. CNAME
        q.mwild.example.org. MX
        q.mwild.example.org. A
        upper.example.org. A
        UPPER.example.org. TXT
        e.s.example.org. A
        _sip._tcp.example.org. SRV
        svc.example.org. HTTPS
        svcself.example.org. HTTPS
        svcmix.example.org. SVCB
        svcdoh.example.org. SVCB
        hinfo2.example.org. HINFO
        hinfo3.example.org. HINFO
        hinfo4.example.org. HINFO
        cert2.example.org. CERT
        child.example.org. A
        child.example.org. NS
        child.example.org. DS
        child.example.org. DS edns do
        x.child.example.org. A edns do
        below.child.example.org. A
        ns.child.example.org. A
        tochild.example.org. A
        old.example.org. A
        old.example.org. DNAME
        x.old.example.org. A
        y.old.example.org. A
        z.old.example.org. A
        x.old.example.org. CNAME
        away.away.example.org. A
        x.round.example.org. A
        x.trip.example.org. A
        signed.example.org. NSEC
        none.away.example.org. A
        multi.example.org. A
        ptr.example.org. PTR
        naptr.example.org. NAPTR
        loc.example.org. TYPE29
        sshfp.example.org. SSHFP
        tlsa.example.org. TLSA
        key.example.org. DNSKEY
        key.example.org. DNSKEY edns do
        uri.example.org. TYPE256
        hinfo.example.org. HINFO
        apl.example.org. TYPE42
        eui.example.org. TYPE108
        eui.example.org. TYPE109
        relay.example.org. TYPE260
        hip.example.org. TYPE55
        rp.example.org. TYPE17
        afsdb.example.org. TYPE18
        x25.example.org. TYPE19
        isdn.example.org. TYPE20
        gpos.example.org. TYPE27
        cert.example.org. CERT
        dhcid.example.org. TYPE49
        nid.example.org. TYPE104
        l32.example.org. TYPE105
        l64.example.org. TYPE106
        lp.example.org. TYPE107
        csync.example.org. CSYNC
        zonemd.example.org. TYPE63
        unknown.example.org. TYPE65280
        known.example.org. A
        gen-1.example.org. A
        gen-2.example.org. A
        gen-3.example.org. A
        gx-000a.example.org. A
        gx-000b.example.org. A
        example.org. ANY
        multi.example.org. ANY
        key.example.org. RRSIG
        example.org. AXFR tcp
        example.org. A CH
        org. A
        target.example.net. A
        none.example.net. A
        example.net. SOA
        lone.test. A
        lone.test. NS
        a.lone.test. A",
}];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_files_are_answered_as_by_coredns() {
    compare(GROUPS).await;
}
