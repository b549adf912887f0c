module lb-linker.test/external-dns

go 1.26.0

require sigs.k8s.io/external-dns v0.22.0
