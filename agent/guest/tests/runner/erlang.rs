//! The party that v1 was made for: a real Erlang reads the answers.

use crate::support::Runner;

/// Asks over its own sockets and checks the decoded terms; prints `ok`.
const CHECK: &str = r#"
Ask = fun(Request) ->
    {ok, Socket} = gen_tcp:connect({local, os:getenv("RINGFENCE_TOOLRUNNER_SOCKET")}, 0, [local, binary, {active, false}, {packet, raw}]),
    ok = gen_tcp:send(Socket, Request),
    Read = fun Read(All) -> case gen_tcp:recv(Socket, 0, 60000) of {ok, More} -> Read(<<All/binary, More/binary>>); {error, closed} -> All end end,
    binary_to_term(Read(<<>>))
end,
{<<"hi\n">>, <<>>, 0} = Ask(<<"cat\tfile.txt\n">>),
{<<>>, Err, 127} = Ask(<<"no-such-tool\n">>),
true = is_binary(Err) andalso byte_size(Err) > 0,
{<<>>, <<"e\n">>, 3} = Ask(<<"sh\t-c\techo e >&2; exit 3\n">>),
{<<195,164>>, <<>>, 0} = Ask(<<"printf\t%s\t", 195, 164, "\n">>),
{Long, <<>>, 0} = Ask(<<"printf\t%9000s\n">>),
true = byte_size(Long) > 4000 andalso byte_size(Long) < 5000,
{<<>>, _, 137} = Ask(<<"sh\t-c\tkill -9 $$\n">>),
Answer = {<<"hi\n">>, <<>>, 0},
Answer = binary_to_term(term_to_binary(Answer)),
io:format("ok ~p~n", [term_to_binary(Answer)]),
halt(0).
"#;

#[test]
fn an_answer_is_a_tuple_of_output_errors_and_code() {
    let runner = Runner::start(&[]);
    runner.file("file.txt", "hi\n");
    let mut erl = runner.command("erl");
    erl.args(["+S", "1:1", "-noshell", "-noinput", "-eval", CHECK]);
    let output = erl.output().expect("`cargo xtask setup` installs erlang-base");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.starts_with("ok "),
        "{said} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Its own encoding of such a term is the daemon's, byte for byte.
    let bytes = runner.exchange(b"cat\tfile.txt\n");
    let listed: Vec<String> = bytes.iter().map(u8::to_string).collect();
    assert_eq!(
        said.trim().trim_start_matches("ok <<").trim_end_matches(">>").replace(['\n', ' '], ""),
        listed.join(",")
    );
}
