$ORIGIN example.com.
$TTL 3600
@ IN SOA ns1 hostmaster 2025010101 7200 3600 1209600 300
@ IN NS ns1
ns1 IN A 192.0.2.53
www IN CNAME www.example.org.
