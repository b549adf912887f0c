// Executes templates with Go's text/template, as CoreDNS's plugin template does.
//
// Reads a JSON object from standard input: the templates, and the data of queries. Writes a JSON array to standard
// output with an element for each template: the error of parsing it, or its normalized text, and its result for each
// query.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/template"
)

// The limit of lb-linker for the text of a record, in bytes.
const maxLength = 4 * 65536

type input struct {
	Templates []string
	Queries   []query
}

// A query as the test describes it.
type query struct {
	Zone, Name, Regex, Class, Type, Remote string
	Match                                  []string
	Group                                  map[string]string
	Message                                Msg
}

type output struct {
	// The error of parsing the template; empty if there is none.
	Error string
	// The template in Go's normalized form.
	Tree string
	Runs []run
}

type run struct {
	Error string
	Text  string
}

// The data of CoreDNS 1.14: plugin/template/template.go.
type templateData struct {
	Zone     string
	Name     string
	Regex    string
	Match    []string
	Group    map[string]string
	Class    string
	Type     string
	Message  *Msg
	Question *Question
	Remote   string
}

// Meta is the value of the plugin metadata, which isn't enabled.
func (data *templateData) Meta(string) string { return "" }

// MsgHdr, Msg and Question have the fields of miekg/dns.
type MsgHdr struct {
	Id                 uint16
	Response           bool
	Opcode             int
	Authoritative      bool
	Truncated          bool
	RecursionDesired   bool
	RecursionAvailable bool
	Zero               bool
	AuthenticatedData  bool
	CheckingDisabled   bool
	Rcode              int
}

type Msg struct {
	MsgHdr
	Compress bool
	Question []Question
	Answer   []fmt.Stringer
	Ns       []fmt.Stringer
	Extra    []fmt.Stringer
}

type Question struct {
	Name   string
	Qtype  uint16
	Qclass uint16
}

func (q *Question) String() string {
	return fmt.Sprintf(";%s\tCLASS%d\t TYPE%d", q.Name, q.Qclass, q.Qtype)
}

// A limited text.
type limited struct{ strings.Builder }

func (text *limited) Write(bytes []byte) (int, error) {
	if text.Len()+len(bytes) > maxLength {
		return 0, errors.New("the result is longer than any record")
	}
	return text.Builder.Write(bytes)
}

func execute(parsed *template.Template, query query) run {
	data := &templateData{
		Zone:     query.Zone,
		Name:     query.Name,
		Regex:    query.Regex,
		Match:    query.Match,
		Group:    query.Group,
		Class:    query.Class,
		Type:     query.Type,
		Message:  &query.Message,
		Question: &query.Message.Question[0],
		Remote:   query.Remote,
	}
	var text limited
	if err := parsed.Execute(&text, data); err != nil {
		return run{Error: err.Error()}
	}
	return run{Text: text.String()}
}

func main() {
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fmt.Fprintln(os.Stderr, "templates: the input:", err)
		os.Exit(2)
	}
	out := make([]output, 0, len(in.Templates))
	for _, text := range in.Templates {
		functions := template.FuncMap{"parseInt": strconv.ParseUint}
		parsed, err := template.New("answer").Funcs(functions).Parse(text)
		if err != nil {
			out = append(out, output{Error: err.Error()})
			continue
		}
		result := output{Tree: parsed.Tree.Root.String()}
		for _, query := range in.Queries {
			result.Runs = append(result.Runs, execute(parsed, query))
		}
		out = append(out, result)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, "templates: the output:", err)
		os.Exit(1)
	}
}
