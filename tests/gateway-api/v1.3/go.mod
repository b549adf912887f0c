module lb-linker.test/gateway-api/v1.3

go 1.26.0

require sigs.k8s.io/gateway-api v1.3.0
