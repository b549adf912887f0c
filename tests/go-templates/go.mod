module lb-linker.test/go-templates

go 1.26.0
