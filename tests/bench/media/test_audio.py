from __future__ import annotations

import os
import struct
import sys

import librosa
import numpy as np
import pytest
import soundfile
from transformers import audio_utils

from vcmm.bench.media.audio import fbank, filters, log_stft, resampled, tiled, waveform
from vcmm.bench.media.collection import Undecodable

from .makers import cut, film, patched, tone, written

RATE = 16000


def wav(path, wave, rate=RATE, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave, rate, **options)
    return path


def middle(wave):
    """Without its ends, where a filter has seen less."""
    return wave[len(wave) // 10 : -len(wave) // 10]


def loudest(wave, rate):
    """The frequency that is heard most, in Hz."""
    return np.abs(np.fft.rfft(wave * np.hanning(len(wave)))).argmax() * rate / len(wave)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "FLOAT", "DOUBLE"])
def test_a_wav_is_read_as_it_was_written(tmp_path, subtype):
    path = wav(tmp_path / "a.wav", tone(0.5, RATE), subtype=subtype)
    heard = waveform(path, RATE)
    assert heard.dtype == np.float32
    np.testing.assert_allclose(heard, tone(0.5, RATE), atol=0.01 if subtype == "PCM_U8" else 1e-4)


@pytest.mark.parametrize("name", ["a.flac", "a.ogg", "a.WAV"])
def test_other_files_of_sound(tmp_path, name):
    path = wav(tmp_path / name, tone(0.5, RATE))
    heard = waveform(path, RATE)
    assert len(heard) == RATE // 2
    np.testing.assert_allclose(middle(heard), middle(tone(0.5, RATE)), atol=0.02)


def test_stereo_is_averaged(tmp_path):
    left, right = tone(0.5, RATE), tone(0.5, RATE, hertz=880)
    path = wav(tmp_path / "a.wav", np.stack([left, right], axis=1), subtype="FLOAT")
    np.testing.assert_allclose(waveform(path, RATE), (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize("own", [8000, 22050, 44100, 44101, 48000])
def test_any_rate_becomes_the_one_that_is_asked_for(tmp_path, own):
    heard = waveform(wav(tmp_path / "a.wav", tone(0.5, own), own), RATE)
    assert abs(len(heard) - RATE // 2) <= 1
    expected = tone(1.0, RATE)[: len(heard)]
    np.testing.assert_allclose(middle(heard), middle(expected), atol=2e-3)


def test_what_a_lower_rate_cannot_hold_is_filtered_away():
    high = resampled(tone(0.5, 44100, hertz=12000), 44100, RATE)
    assert np.abs(middle(high)).max() < 0.01
    assert resampled(tone(0.5, RATE), RATE, RATE).tobytes() == tone(0.5, RATE).tobytes()


@pytest.mark.parametrize(
    ("name", "codec", "audio"),
    [
        ("a.flv", "flv", "libmp3lame"),
        ("a.mp4", "libx264", "aac"),
        ("a.avi", "mpeg4", "pcm_s16le"),
        ("a.mkv", "mpeg4", "libmp3lame"),
    ],
)
@pytest.mark.parametrize("layout", ["mono", "stereo"])
def test_the_sound_of_a_film(tmp_path, name, codec, audio, layout):
    path = film(tmp_path / name, codec=codec, audio=audio, layout=layout)
    heard = waveform(path, RATE)
    assert heard.ndim == 1
    assert 2.0 <= len(heard) / RATE < 2.15  # a lossy codec fills its last frame
    assert loudest(heard, RATE) == pytest.approx(440, abs=1)
    # Channels are averaged, not added.
    assert np.sqrt(2) * middle(heard).std() == pytest.approx(0.5, rel=0.05)


def test_an_mp3_in_a_wav_reads_as_neither(tmp_path):
    path = written(tmp_path / "a.wav", b"ID3" + bytes(200))
    with pytest.raises(Undecodable, match=r"a\.wav does not decode: .*(F|f)ormat"):
        waveform(path, RATE)


@pytest.mark.parametrize("name", ["音声 é.wav", "видео.flv", "🎬.mp4", "a#b?c%20.flac"])
def test_names_are_of_any_script(tmp_path, name):
    path = tmp_path / "папка" / name
    if path.suffix in (".wav", ".flac"):
        wav(path, tone(0.5, RATE))
    else:
        film(path, codec="flv" if path.suffix == ".flv" else "mpeg4", audio="libmp3lame")
    assert len(waveform(path, RATE))


def test_a_name_that_is_not_unicode_fails_in_words_that_can_be_printed(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.flv")
    written(path, b"FLV")
    with pytest.raises(Undecodable, match=r"\\udcff\.flv") as problem:
        waveform(path, RATE)
    assert str(problem.value).encode()


def refused(path, why, **options):
    with pytest.raises(Undecodable, match=f"{path.parent.name}/{path.name}.*{why}"):
        waveform(path, RATE, **options)


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".flv", ".mp4", ".mp3"])
def test_files_that_are_no_sound(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    refused(path, "no such file")
    refused(written(path, b""), "empty")
    refused(written(path, b"version https://git-lfs.github.com/spec/v1\n"), "git lfs pull")
    noise = np.random.default_rng(0).bytes(4000)
    refused(written(path, noise), "does not decode")
    path.unlink()
    path.mkdir()
    refused(path, "not a file")
    path.rmdir()
    os.mkfifo(path)
    refused(path, "not a file")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_wav_that_is_cut_off(tmp_path, share):
    refused(cut(wav(tmp_path / "a.wav", tone(0.5, RATE)), share), "cut off")


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_flac_that_is_cut_off(tmp_path, share):
    noise = np.random.default_rng(0).uniform(-1, 1, RATE).astype(np.float32)
    refused(cut(wav(tmp_path / "a.flac", noise), share), "")


@pytest.mark.parametrize(
    ("name", "codec", "audio"),
    [("a.flv", "flv", "libmp3lame"), ("a.mp4", "libx264", "aac"), ("a.avi", "mpeg4", "libmp3lame")],
)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.7])
def test_a_film_that_is_cut_off(tmp_path, name, codec, audio, share):
    path = film(tmp_path / name, codec=codec, audio=audio)
    refused(cut(path, share), "cut off|does not decode")


def test_a_header_of_a_recorder_that_did_not_know_the_length(tmp_path):
    path = wav(tmp_path / "a.wav", tone(0.5, RATE))
    at = path.read_bytes().index(b"data") + 4
    patched(path, "b.wav", at, b"\xff\xff\xff\xff")
    np.testing.assert_allclose(waveform(tmp_path / "b.wav", RATE), tone(0.5, RATE), atol=1e-4)


@pytest.mark.parametrize(("rate", "why"), [(0, ""), (1, "1 Hz"), (2**31 - 1, "Hz")])
def test_a_header_with_an_absurd_rate(tmp_path, rate, why):
    path = wav(tmp_path / "a.wav", tone(0.5, RATE))
    refused(patched(path, "b.wav", 24, struct.pack("<I", rate)), why)


def test_a_header_with_absurd_channels_and_a_torn_one(tmp_path):
    path = wav(tmp_path / "a.wav", tone(0.5, RATE))
    refused(patched(path, "b.wav", 22, struct.pack("<H", 0)), "")
    refused(patched(path, "c.wav", 22, struct.pack("<H", 1000)), "")
    refused(patched(path, "d.wav", 8, b"EVAW"), "does not decode")
    refused(patched(path, "e.wav", 16, b"\xff\xff\xff\x7f"), "")


def test_no_samples_no_sound_track_and_numbers_that_are_none(tmp_path):
    refused(wav(tmp_path / "a.wav", np.zeros(0, np.float32)), "no sound")
    refused(film(tmp_path / "a.mp4"), "no sound track")
    for bad in (np.nan, np.inf):
        wave = tone(0.5, RATE)
        wave[99] = bad
        refused(wav(tmp_path / "b.wav", wave, subtype="FLOAT"), "not finite")


def test_longer_than_asked_for_is_refused(tmp_path):
    path = wav(tmp_path / "a.wav", tone(2, RATE))
    refused(path, "lasts 2 s", limit_seconds=1.5)
    assert len(waveform(path, RATE, limit_seconds=2)) == 2 * RATE
    refused(film(tmp_path / "a.flv", codec="flv", audio="libmp3lame"), "lasts", limit_seconds=1)


def test_a_playlist_in_disguise_opens_no_other_file(tmp_path):
    film(tmp_path / "a.mp4", audio="aac")
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\na.mp4\n#EXT-X-ENDLIST\n"
    refused(written(tmp_path / "b.mp4", playlist), "does not decode")
    refused(written(tmp_path / "c.mp4", b"ffconcat version 1.0\nfile a.mp4\n"), "does not decode")


def test_a_rate_is_positive(tmp_path):
    with pytest.raises(ValueError, match="rate = 0"):
        waveform(tmp_path / "a.wav", 0)


def test_tiled():
    wave = np.arange(3, dtype=np.float32)
    assert tiled(wave, 7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert tiled(wave, 2).tolist() == [0, 1]
    with pytest.raises(ValueError, match="without samples"):
        tiled(wave[:0], 2)


def noise(samples):
    return (0.1 * np.random.default_rng(samples).standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize(
    ("samples", "hop", "shape"),
    # The papers' sizes: 3 s and 20 s at 22.05 kHz, 10 s at 35.4 kHz
    [(66150, 353, (257, 188)), (441000, 353, (257, 1250)), (354000, 353, (257, 1003))],
)
def test_our_spectrogram_is_librosas(samples, hop, shape):
    wave = noise(samples)
    stft = librosa.stft(wave.astype(np.float64), n_fft=512, hop_length=hop)
    made = log_stft(wave)
    assert made.shape == shape
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, np.log(np.abs(stft) + 1e-7), atol=1e-6)


def test_other_windows_silence_and_a_sound_shorter_than_one():
    wave = noise(5000)
    stft = librosa.stft(wave.astype(np.float64), n_fft=1024, hop_length=160)
    np.testing.assert_allclose(
        log_stft(wave, n_fft=1024, hop=160), np.log(np.abs(stft) + 1e-7), atol=1e-6
    )
    np.testing.assert_array_equal(log_stft(np.zeros(999, np.float32)), np.float32(np.log(1e-7)))
    assert log_stft(noise(10)).shape == (257, 1)
    assert np.isfinite(log_stft(np.full(999, 3e38, np.float32))).all()


@pytest.mark.filterwarnings("ignore:At least one mel filter has all zero values:UserWarning")
@pytest.mark.parametrize("rate", [16000, 22050, 44100])
@pytest.mark.parametrize("mels", [64, 128])
def test_our_filter_bank_is_transformers(rate, mels):
    size, shift = int(rate * 0.025), int(rate * 0.010)
    points = 1 << (size - 1).bit_length()
    bank = audio_utils.mel_filter_bank(
        num_frequency_bins=points // 2 + 1,
        num_mel_filters=mels,
        min_frequency=20,
        max_frequency=rate / 2,
        sampling_rate=rate,
        norm=None,
        mel_scale="kaldi",
        triangularize_in_mel_space=True,
    )
    np.testing.assert_allclose(filters(rate, points, mels), bank, atol=1e-12)
    wave = noise(3 * rate) + 0.25  # a microphone's offset
    centred = wave - wave.mean(dtype=np.float64)
    expected = audio_utils.spectrogram(
        centred,
        audio_utils.window_function(size, "hann", periodic=False),
        frame_length=size,
        hop_length=shift,
        fft_length=points,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=bank,
        log_mel="log",
        mel_floor=1.192092955078125e-07,
        remove_dc_offset=True,
    ).T
    made = fbank(wave, rate, mels=mels)
    assert made.shape == (1024, mels)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made[: len(expected)], expected, atol=1e-5)
    assert not made[len(expected) :].any()
    np.testing.assert_array_equal(fbank(wave, rate, mels=mels, frames=50), made[:50])


@pytest.mark.filterwarnings("ignore:At least one mel filter has all zero values:UserWarning")
def test_our_filter_bank_is_what_ast_is_given():
    from transformers import ASTFeatureExtractor

    wave = noise(5 * RATE)
    wave -= wave.mean()  # which the papers' scripts do before it
    extractor = ASTFeatureExtractor(do_normalize=False)
    expected = extractor(wave, sampling_rate=RATE, return_tensors="np")["input_values"][0]
    np.testing.assert_allclose(fbank(wave, RATE), expected, atol=1e-4)


def test_a_sound_shorter_than_a_window_has_no_filter_bank():
    assert fbank(noise(400), RATE)[0].any()
    with pytest.raises(Undecodable, match=r"24\.9 ms, less than one window"):
        fbank(noise(399), RATE)


def test_silence_has_kaldis_floor():
    made = fbank(np.zeros(RATE, np.float32), RATE)
    np.testing.assert_allclose(made[:98], np.log(np.finfo(np.float32).eps))
    assert not made[98:].any()


def test_a_library_that_lacks_is_no_broken_file(tmp_path, monkeypatch):
    class Lacks:
        def find_spec(self, name, path=None, target=None):
            if name == "soundfile":
                raise OSError("sndfile library not found")

    path = wav(tmp_path / "a.wav", tone(0.5, RATE))
    monkeypatch.delitem(sys.modules, "soundfile")
    monkeypatch.setattr(sys, "meta_path", [Lacks(), *sys.meta_path])
    with pytest.raises(ImportError, match="sndfile library not found"):
        waveform(path, RATE)
