"""Images in requests, over the three APIs: what they count, what of them the prefix cache tells apart, and what is an error
of the request alone. The scripted engine takes images as it takes text; the bundled model has no vision and says so."""
import base64
import json
import struct
import subprocess
import zlib

import pytest
from harness import CHAT, binary, model_dir, scripted_server, write_script
from test_exact_replay import tokens
from test_transport import upload
from wire import APIS, MODEL, PATHS, send, tool

UNSUPPORTED = ("You have uploaded an unsupported image. Please make sure your image is valid and has one of the following "
               "formats: webp, png, jpeg, and gif.")


def png(width, height, colour=(200, 30, 30)):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes(colour) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def url_of(data, kind="image/png"):
    return f"data:{kind};base64," + base64.b64encode(data).decode()


def part(api, url, detail=None):
    if api == "chat":
        return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}
    if api == "responses":
        return {"type": "input_image", "image_url": url} | ({"detail": detail} if detail else {})
    if url.startswith("data:"):
        kind, data = url[5:].split(";base64,")
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def request(api, *urls, text="What is this? " + "word " * 300, detail=None, **more):
    message = {"role": "user", "content": [*(part(api, url, detail) for url in urls),
                                           {"type": "input_text" if api == "responses" else "text", "text": text}]}
    return {"model": MODEL, "max_output_tokens" if api == "responses" else "max_tokens": 20,
            "input" if api == "responses" else "messages": [message], **more}


@pytest.fixture(scope="module")
def script_file(tmp_path_factory):
    return write_script(tmp_path_factory.mktemp("images"), [{"text": "ok"}])


@pytest.fixture(scope="module")
def server(script_file):
    with scripted_server(script_file) as running:
        yield running


def prompt_tokens(server, api, *urls, **fields):
    return tokens(api, send(server, api, request(api, *urls, **fields)).usage)[0]


@pytest.mark.parametrize("api", APIS)
def test_images_count_as_the_service_counts_them(server, api):
    text = prompt_tokens(server, api)
    alone = None
    for width, height, count in ((100, 100, 184), (1, 1, 184), (640, 480, 206), (978, 479, 302), (2, 165, 356), (165, 2, 240),
                                 (1920, 1080, 968)):
        found = prompt_tokens(server, api, url_of(png(width, height)))
        alone = alone if alone is not None else found - text - count  # the line feeds between image and text
        assert found - text == count + alone, (width, height)
    assert 0 <= alone <= 2
    if api != "messages":  # long side 512 first
        assert prompt_tokens(server, api, url_of(png(1920, 1080)), detail="low") - text == 192 + alone


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True])
def test_every_place_that_counts_agrees(server, api, stream):
    body = request(api, url_of(png(640, 480)), url_of(png(20, 20)))
    charged = tokens(api, send(server, api, body | {"stream": stream}).usage)[0]
    marked = body | ({"system": "s"} if api == "messages" else {})  # so that the route sees what API it is
    ids = server.json("POST", "/v1/render", marked)["token_ids"]
    placeholder = max(set(ids), key=ids.count)
    assert server.json("POST", "/detokenize", {"tokens": [placeholder]})["prompt"].endswith("image｜>")
    assert ids.count(placeholder) == 206 + 184
    if api == "chat":
        assert len(ids) == charged == server.json("POST", "/tokenize", body)["count"]
    if api == "messages":
        assert charged == server.json("POST", PATHS[api] + "/count_tokens", body)["input_tokens"]
    if api == "responses":
        assert charged == server.json("POST", PATHS[api] + "/input_tokens", body)["input_tokens"]


@pytest.mark.parametrize("api", APIS)
def test_the_cache_tells_pictures_of_one_size_apart(server, api):
    cached = lambda colour: tokens(api, send(server, api, request(api, url_of(png(333, 222, colour)), text=f"{api} " + "word " * 300)).usage)[1]
    assert cached((1, 2, 3)) == 0
    assert cached((1, 2, 3)) >= 384, "the same picture"
    assert cached((250, 2, 3)) == 0, "another one, with the same ids"
    assert cached((250, 2, 3)) >= 384


def test_images_in_tool_results(server):
    image = part("messages", url_of(png(640, 480)))
    turn = [{"role": "user", "content": "look"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]
    result = lambda *content: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "x"}, *content]}]}
    body = {"model": MODEL, "max_tokens": 9, "tools": [tool("messages", "f", x="string")]}
    with_image, without = (tokens("messages", send(server, "messages", body | {"messages": [*turn, last]}).usage)[0] for last in (result(image), result()))
    assert with_image - without in range(206, 209)



def by_id(api, file_id, flat=False):
    if api == "chat":  # as the service has it, or as OpenAI's clients send it
        return {"type": "file", "file_id": file_id} if flat else {"type": "file", "file": {"file_id": file_id}}
    return {"type": "input_image", "file_id": file_id} if api == "responses" else {"type": "image", "source": {"type": "file", "file_id": file_id}}


def with_file(api, file_id, flat=False):
    content = [by_id(api, file_id, flat), {"type": "input_text" if api == "responses" else "text", "text": "What is this? " + "word " * 300}]
    return {"model": MODEL, "input" if api == "responses" else "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("api", APIS)
def test_uploaded_files_stand_for_their_images(script_file, server, api):
    with scripted_server(script_file, "--api-key", "one:a", "--api-key", "two:b") as keys:
        status, file = upload(keys, png(640, 480, (9, 9, 9)), "a.png", key="one")
        assert status == 200, file
        own, other = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        used = lambda: tokens(api, send(keys, api, with_file(api, file["id"]), own).usage)
        total, cached, _ = used()
        assert total == prompt_tokens(server, api, url_of(png(640, 480, (9, 9, 9)))) and cached == 0
        assert used()[1] >= 384, "the same pixels again"
        assert tokens(api, send(keys, api, with_file(api, file["id"], flat=True), own).usage)[0] == total
        status, _, data = keys.request("POST", PATHS[api], with_file(api, file["id"]), other)
        error = json.loads(data)["error"]
        assert status == 400 and f'no file with id "{file["id"]}"' in error["message"], "another tenant's"
        assert keys.request("DELETE", f"/v1/files/{file['id']}", headers=own)[0] == 200
        assert keys.request("POST", PATHS[api], with_file(api, file["id"]), own)[0] == 400


@pytest.mark.parametrize("api", APIS)
def test_files_are_not_named_where_there_are_none(script_file, api):
    with scripted_server(script_file, "--files-store", 0) as server:
        status, _, data = server.request("POST", PATHS[api], with_file(api, "file-api-" + "0" * 32))
        assert status == 400 and "keeps no files" in json.loads(data)["error"]["message"]
    with scripted_server(script_file, "--api-policy", "official") as server:
        status, _, data = server.request("POST", PATHS[api], with_file(api, "file-api-" + "0" * 32, flat=True))
        assert status == 400 and "file_id is not supported. Pass the image as a base64 data url instead." in json.loads(data)["error"]["message"]


BOMB = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
BAD = {"bomb": BOMB, "cut": png(64, 64)[:-30], "empty": b"", "text": b"hello", "wide": png(8193, 1), "pixels": BOMB[:16] + struct.pack(">II", 8000, 8000)}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("bad", BAD)
def test_B082_a_bad_image_is_an_error_of_its_request(server, api, bad):
    status, _, data = server.request("POST", PATHS[api], request(api, url_of(png(9, 9)), url_of(BAD[bad])))
    error = json.loads(data)["error"]
    assert status == 400 and error["type"] == "invalid_request_error", error
    assert UNSUPPORTED in error["message"] or "base64" in error["message"], error
    assert prompt_tokens(server, api, url_of(png(9, 9)), text="next") > 184


@pytest.mark.parametrize("api", APIS)
def test_B082_the_number_of_images_is_bounded(server, api):
    pixel = url_of(png(1, 1))
    status, _, data = server.request("POST", PATHS[api], request(api, *[pixel] * 65))
    assert status == 400 and "Too many images: max 64 images per request" in json.loads(data)["error"]["message"]
    assert prompt_tokens(server, api, *[pixel] * 64) > 64 * 184


def test_the_official_policy_has_the_official_limits(script_file):
    with scripted_server(script_file, "--api-policy", "official") as server:
        pixel = url_of(png(1, 1))
        status, _, data = server.request("POST", CHAT, request("chat", *[pixel] * 601))
        assert status == 400
        assert json.loads(data)["error"]["message"] == ".messages[0]: Too many images: max 600 images per request, got 601"
        assert prompt_tokens(server, "chat", *[pixel] * 65) > 65 * 184


@pytest.mark.parametrize("api", APIS)
def test_links_are_not_fetched_unless_configured(server, api):
    status, _, data = server.request("POST", PATHS[api], request(api, "https://example.org/a.png"))
    assert status == 400 and "not fetched" in json.loads(data)["error"]["message"]


def test_B081_links_to_inner_addresses_are_refused(script_file, server):
    with scripted_server(script_file, "--media-fetch", "--media-allow-domain", "localhost,127.0.0.1", "--media-allow-domain", "*.example") as fetching:
        for url in (f"http://localhost:{server.port}/livez", f"http://127.0.0.1:{server.port}/livez", "http://169.254.169.254/",
                    "http://[::ffff:127.0.0.1]/", "http://0x7f000001/", "http://allowed.example\\@10.0.0.1/", "http://10.0.0.1/",
                    "http://user@localhost/"):
            status, error = fetching.error(request("chat", url))
            assert status == 400 and error["message"] == f".messages[0].image[0]: Failed to download image from {url}", error
        status, error = fetching.error(request("chat", "http://localhost/" + "x" * 8200))
        assert status == 400 and "too long, max link length 8192" in error["message"]
        assert prompt_tokens(fetching, "chat", url_of(png(9, 9))) > 184


def test_fetching_needs_a_list_of_hosts(script_file):
    done = subprocess.run([binary(), "serve", model_dir(), "--engine", f"scripted:{script_file}", "--port", "0", "--media-fetch"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--media-allow-domain" in done.stderr


@pytest.mark.parametrize("api", APIS)
def test_a_model_without_vision_says_so(shared_server, api):
    body = request(api, url_of(png(9, 9))) | {"model": shared_server.model}
    status, _, data = shared_server.request("POST", PATHS[api], body)
    error = json.loads(data)["error"]
    assert status == 400 and error["message"] == "images are not supported: this model has no vision", error
    if api != "messages":
        assert error["code"] == "unsupported_parameter" and error["param"].startswith(("messages[0]", "input[0]")), error
    models = shared_server.json("GET", "/v1/models")["data"]
    assert not any(one["capabilities"]["vision"] for one in models)


def test_the_list_of_models_tells(server):
    assert all(one["capabilities"]["vision"] for one in server.json("GET", "/v1/models")["data"])
