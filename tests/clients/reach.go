// Fetches a URL to standard output. It is built without C, so that Go's own resolver asks for the name.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func fetch(url string) error {
	answer, err := http.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: reach-go URL")
		os.Exit(2)
	}
	if err := fetch(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
